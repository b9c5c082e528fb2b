"""HTTP/1.1 over sockets and asyncio, for stores that speak it: the protocol is h11's, the connections are ours."""
