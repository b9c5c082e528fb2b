"""Cases for the store protocol itself."""
