"""One file, one contestant: how it is called. Its library is imported only in the process that measures it."""
