"""Values that many processes share: versioned cells, and values that one process fetches for all."""
