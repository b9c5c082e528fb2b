"""What the algorithms need from the world: time, waiting, threads or tasks. One module a world."""
