"""Cases for locks."""
