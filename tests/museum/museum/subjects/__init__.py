"""One file, one library: how its lock is called. The library is imported only in the process that drives it."""
