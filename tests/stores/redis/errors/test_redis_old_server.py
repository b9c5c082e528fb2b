"""A server of an old version, or with an old protocol, is refused with its reason."""

from __future__ import annotations

import asyncio
import threading

import pytest

from leasehold import Unsupported
from leasehold_lab.runtimes.harnesses import Harness
from support.flavors import both
from support.stores.redis.refusals import refusal

OLD = {
    "5.0": b"-ERR unknown command `%s`, with args beginning with: %s\r\n",
    "6.0": b"%%7\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$5\r\n6.0.9\r\n$5\r\nproto\r\n:3\r\n"
    b"$2\r\nid\r\n:1\r\n"
    b"$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$6\r\nmaster\r\n$7\r\nmodules\r\n*0\r\n",
}
OLD["7.0 in RESP2"] = OLD["6.0"].replace(b"%%7", b"*14").replace(b"6.0.9", b"7.0.9").replace(b":3", b":2")


class OldServer:
    """Answers HELLO like old servers, which cannot be installed here. Redis 5 repeats an unknown command."""

    def __init__(self, version: str) -> None:
        self.answer = OLD[version]
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)

    def __enter__(self) -> OldServer:
        self.thread.start()
        start = asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.server = asyncio.run_coroutine_threadsafe(start, self.loop).result()
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                words = []
                for _ in range(int(line[1:])):
                    size = int((await reader.readline())[1:])
                    words.append((await reader.readexactly(size + 2))[:-2])
                beginning = b" ".join(b"`%s`," % word for word in words[1:])
                writer.write(self.answer % (words[0], beginning) if b"`" in self.answer else self.answer % ())
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def __exit__(self, *_: object) -> None:
        async def end() -> None:
            self.server.close()
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


@both
@pytest.mark.parametrize("version", OLD)
def test_a_server_that_is_too_old(harness: Harness, version: str) -> None:
    with OldServer(version) as server:
        for user in ("", "app:canary-4711@"):
            error = refusal(harness, f"redis://{user}127.0.0.1:{server.port}")
            assert isinstance(error, Unsupported)
            assert ("locks need RESP3" if "RESP2" in version else "6.2 or later") in str(error)
            assert "canary" not in repr(error)
