"""Language models at work: tokens, chat templates, sampling, and the loop that generates."""
