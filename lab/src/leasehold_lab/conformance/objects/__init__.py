"""Cases for coordination, values and calls."""
