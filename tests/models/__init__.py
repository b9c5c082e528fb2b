"""Models of servers, for simulated time: they answer as the real ones do, which tests compare."""
