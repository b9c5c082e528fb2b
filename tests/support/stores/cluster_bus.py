"""The links among the nodes of a cluster, by which they tell each other who lives: each can be cut, and mended."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from leasehold_lab.servers import Node, RedisCluster

SENDER = slice(40, 80)
"""Where the id of the sender stands in a message of the bus (``clusterMsg`` in Redis's ``cluster.h``)."""


class Bus:
    """A proxy before the bus port of each node, which all nodes announce; made before the cluster is started."""

    def __init__(self, cluster: RedisCluster) -> None:
        self._cluster = cluster
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy-bus")
        self._apart: set[str] = set()
        self._links: dict[asyncio.Task[Any], tuple[str, Node]] = {}
        self._servers: list[asyncio.Server] = []

    def __enter__(self) -> Bus:
        self._thread.start()
        self._run(self._listen())
        self._cluster.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._cluster.stop()
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def cut(self, node: Node) -> None:
        """Cut a node off from all others: no message passes, either way. Clients still reach it."""
        self._run(self._part({self._cluster.id_of(node)}, node))
        node.command("ACL", "SETUSER", "link", "off")  # its replicas, too
        node.command("CLIENT", "KILL", "USER", "link")

    def mend(self, node: Node) -> None:
        """End what `cut` did."""
        self._apart = set()
        node.command("ACL", "SETUSER", "link", "on")

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _listen(self) -> None:
        for node in self._cluster.nodes:

            async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, node: Node = node) -> None:
                await self._link(node, reader, writer)

            server = await asyncio.start_server(accept, "127.0.0.1", 0)
            self._servers.append(server)
            node._config["cluster-announce-bus-port"] = str(server.sockets[0].getsockname()[1])

    async def _part(self, apart: set[str], node: Node) -> None:
        self._apart = apart
        self._to = node
        for task, (sender, target) in list(self._links.items()):
            if sender in apart or target is node:
                task.cancel()

    async def _link(self, node: Node, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass on what one node says to another, and its answers."""
        task = asyncio.current_task()
        assert task is not None
        there: asyncio.StreamWriter | None = None
        try:
            head = await reader.readexactly(SENDER.stop)
            sender = head[SENDER].decode("ascii", "replace")
            if self._apart and (sender in self._apart or node is self._to):
                return
            self._links[task] = sender, node
            back, there = await asyncio.open_connection("127.0.0.1", int(node._config["cluster-port"]))
            there.write(head)
            ways = [asyncio.ensure_future(_pass(reader, there)), asyncio.ensure_future(_pass(back, writer))]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._links.pop(task, None)
            for end in (writer, there):
                if end is not None:
                    end.transport.abort()

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        for task in list(self._links):
            task.cancel()
        await asyncio.sleep(0.1)


async def _pass(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(65536):
        sink.write(data)
        await sink.drain()
