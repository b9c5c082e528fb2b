"""A TCP proxy that injects faults between a client and a server."""
