"""The migrations of the tables, one for each layout of theirs."""
