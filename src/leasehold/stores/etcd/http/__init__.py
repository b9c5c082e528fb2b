"""HTTP/1.1 over sockets and asyncio: h11 parses the protocol, the connections are made here."""
