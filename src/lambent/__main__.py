"""`python -m lambent`: the command line."""

from lambent.cli import main

if __name__ == "__main__":
    main()
