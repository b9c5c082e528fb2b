"""Where a scenario takes place: a server, a proxy before it, clients of one library, and a look from outside."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Any

from leasehold_lab.proxy.proxy import FaultProxy
from leasehold_lab.servers.redis.resp import Connection
from museum.boot import command
from museum.port import Actor, Lock, Place, Variant


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a call ended: with a value, or with an error."""

    value: Any = None
    error: BaseException | None = None

    @property
    def words(self) -> str:
        """What the call said, for people."""
        if self.error is not None:
            return f"raises `{type(self.error).__name__}`"
        return "reports that it holds the lock" if self.value else "reports that it does not hold the lock"


async def outcome(call: Awaitable[Any]) -> Outcome:
    """Wait for a call and return how it ended."""
    try:
        return Outcome(await call)
    except asyncio.CancelledError as error:
        return Outcome(error=error)
    except Exception as error:
        return Outcome(error=error)


class Hall:
    """One scenario's surroundings. Only what it names is touched on the server."""

    def __init__(self, module: str, flavor: str, variant: Variant, place: Place) -> None:
        self.module = module
        self.flavor = flavor
        self.variant = variant
        self.blocking = flavor == "blocking"
        self.name = f"m{secrets.token_hex(4)}"
        self._place = place
        self._proxy: FaultProxy | None = None
        self._actors: list[Actor] = []
        self._clients: list[Any] = []
        self._linked: Any = None
        self._direct: Any = None

    @property
    def proxy(self) -> FaultProxy:
        """The proxy before the server, for clients that are made with ``link``."""
        if self._proxy is None:
            self._proxy = FaultProxy(self._place.port).start()
        return self._proxy

    # --- locks -------------------------------------------------------------------------------------------------

    async def client(self, *, link: bool = False) -> Any:
        """Make a client, as another process would have one; with ``link`` its bytes pass the proxy."""
        place = Place(self.proxy.port, self._place.folder) if link else self._place
        client = self.variant.open(place)
        if inspect.isawaitable(client):
            client = await client
        self._clients.append(client)
        return client

    async def lock(
        self,
        name: str = "",
        *,
        lease: float | None = None,
        client: Any = None,
        link: bool = False,
        fixed: bool = False,
    ) -> Lock:
        """Make a lock object; its own client has acquired and released before.

        None as lease is the library's default; a ``fixed`` one is not renewed.
        """
        if client is None:
            client = await self.client(link=link)
            await self.warm(client)
        actor = self._actor()
        make = getattr(client, "fixed", client.lock) if fixed else client.lock
        made = await self._in(actor, make, name or self.name, lease)
        return Lock(made, actor)

    async def alongside(self, lock: Lock) -> Lock:
        """Return the same lock object in the hands of another thread or task."""
        return Lock(lock.raw.alongside(), self._actor())

    async def body(self, name: str, wait: float) -> bool | None:
        """Let a ``with`` block try for the lock so long; return whether its body ran, None if it cannot be told to."""
        client, actor = await self.client(), self._actor()
        run = getattr(client, "body", None)
        return None if run is None else await actor.start(run, name, wait)

    async def warm(self, client: Any) -> None:
        """Let a client acquire and release something else."""
        lock = Lock(await self._in(actor := self._actor(), client.lock, f"{self.name}w", None), actor)
        await lock.acquire(0)
        await lock.release()

    async def _in(self, actor: Actor, call: Any, *args: Any) -> Any:
        if self.blocking:
            return await actor.start(call, *args)
        return call(*args)

    def _actor(self) -> Actor:
        self._actors.append(actor := Actor(self.blocking))
        return actor

    # --- looking from outside ----------------------------------------------------------------------------------

    async def taken(self, name: str = "") -> bool:
        """Try once to acquire the lock as another client; release it again."""
        if self._direct is None:
            self._direct = await self.client()
        actor = self._actor()
        lock = Lock(await self._in(actor, self._direct.lock, name or self.name, 5), actor)
        if await lock.acquire(0):
            await lock.release()
            return False
        return True

    async def free_within(self, seconds: float, name: str = "") -> bool:
        """Return whether another client can acquire the lock in that time."""
        until = time.monotonic() + seconds
        while await self.taken(name):
            if time.monotonic() > until:
                return False
            await asyncio.sleep(0.05)
        return True

    def command(self, *words: str | bytes | int) -> Any:
        """Ask the Redis server."""
        connection = Connection(socket.create_connection(("127.0.0.1", self._place.port), 5))
        try:
            return connection.command(*words)
        finally:
            connection.close()

    def keys(self) -> list[str]:
        """Return the keys of this scenario's locks."""
        found = self.command("KEYS", f"*{self.name}*")
        return [key for key in map(str, found) if f"{self.name}w" not in key]

    def forever(self) -> bool:
        """Return whether a key of this scenario's lock never expires."""
        return self.variant.backend == "redis" and any(self.command("PTTL", key) == -1 for key in self.keys())

    async def left(self) -> float | None:
        """Return the seconds for which the lock stays taken, of a library that says so; None of others."""
        client = await self.client()
        ask = getattr(client, "left", None)
        return None if ask is None else float(await self._actor().start(ask, self.name))

    def remains(self) -> str:
        """Say how long what is left of the lock stays."""
        if self.variant.backend == "zookeeper":
            return "until its session ends"
        if self.forever():
            return "for ever: the key has no expiry"
        if not (keys := self.keys()):
            raise RuntimeError("nothing is left of the lock")
        left = max(int(self.command("PTTL", key)) for key in keys)
        return f"until its lease ends ({max(1, round(left / 1000))} s)"

    def delete(self) -> None:
        """Delete the lock's keys, as an operator or an eviction would."""
        for key in self.keys():
            self.command("DEL", key)

    async def end_session(self, client: Any) -> None:
        """Let the server end a client's session."""
        await self._actor().start(client.lose)

    async def restart(self, client: Any, meanwhile: Callable[[], object]) -> None:
        """Stop a client, do something, and start it with a new session."""
        await self._actor().start(client.restart, meanwhile)

    def reconnect(self) -> None:
        """Let the proxy be reached again, without faults."""
        self.proxy.heal()
        self.proxy.start()

    # --- a holder that dies ------------------------------------------------------------------------------------

    def crash(self, lease: float | None) -> None:
        """Let another process acquire the lock, and be killed while it holds it."""
        spec = {"place": asdict(self._place), "name": self.name, "lease": lease, "flavor": self.flavor}
        child = subprocess.Popen(
            command(sys.executable, "museum.crash", self.module, json.dumps(spec)), stdout=subprocess.PIPE
        )
        said, _ = child.communicate(timeout=20)
        if said.strip() != b"held":
            raise RuntimeError(f"the process that was to die with the lock did not get it: {said!r}")

    async def close(self) -> None:
        """Close all clients, and the proxy."""
        for client in reversed(self._clients):  # some nest
            closed = client.close()
            if inspect.isawaitable(closed):
                await closed
        for actor in self._actors:
            actor.close()
        if self._proxy is not None:
            self._proxy.close()


def fork_and_release(raw: Any) -> bool:
    """Fork, let the child end its copy of a block, and return whether it ended in time; called in the lock's thread."""
    pid = os.fork()
    if pid == 0:
        try:
            raw.release()
        finally:
            os._exit(0)
    until = time.monotonic() + 3.0
    while not os.waitpid(pid, os.WNOHANG)[0]:
        if time.monotonic() > until:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
            return False
        time.sleep(0.01)
    return True
