"""Real servers for tests: one class is one kind of server, a child process on a free port of the loopback interface.

Example:
    ```python
    with RedisServer() as server:
        client = Client.from_url(server.url)
    ```

"""

from leasehold.testing.servers.base import MissingServer, Server
from leasehold.testing.servers.certificates import Certificates
from leasehold.testing.servers.redis import RedisServer

__all__ = ["Certificates", "MissingServer", "RedisServer", "Server"]
