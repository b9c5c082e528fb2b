"""Models of Redis servers."""
