"""lambent: a search-first ML compiler."""
