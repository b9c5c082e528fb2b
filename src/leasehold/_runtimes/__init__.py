"""What the algorithms need from a runtime: time, waiting, threads or tasks. One module for each runtime."""
