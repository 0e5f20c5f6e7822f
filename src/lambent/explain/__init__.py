"""What a program tells of its search, and how a tile program reads."""
