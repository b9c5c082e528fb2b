"""Models of SQL servers."""
