"""kazoo's Lock on ZooKeeper: held as long as the client's session, of 2 s here."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from museum.port import Place, Raw, Variant

client_module: Any = import_module("kazoo.client")
exceptions: Any = import_module("kazoo.exceptions")
PACKAGE = "kazoo"
SESSION = 2.0


def end_session(place: Place, session: Any) -> None:
    """Let the server end a session, as when its time has run out: a client that leaves a session ends it for all."""
    other = client_module.KazooClient(f"127.0.0.1:{place.port}", client_id=session)
    other.start()
    other.stop()
    other.close()


class Blocking:
    def __init__(self, place: Place) -> None:
        self._place = place
        self.kazoo = client_module.KazooClient(f"127.0.0.1:{place.port}", timeout=SESSION)
        self.kazoo.start()

    def lock(self, name: str, lease: float | None) -> BlockingLock:
        return BlockingLock(self.kazoo.Lock(f"/museum/{name}", "museum"))

    def lose(self) -> None:
        end_session(self._place, self.kazoo.client_id)

    def restart(self, meanwhile: Callable[[], object]) -> None:
        self.kazoo.stop()
        meanwhile()
        self.kazoo.start()

    def close(self) -> None:
        self.kazoo.stop()
        self.kazoo.close()


class BlockingLock(Raw):
    def __init__(self, lock: Any) -> None:
        self._lock = lock

    def acquire(self, wait: float | None) -> bool:
        try:
            return bool(self._lock.acquire(blocking=wait != 0, timeout=wait or None))
        except exceptions.LockTimeout:
            return False

    def release(self) -> None:
        self._lock.release()

    def valid(self) -> bool:
        return bool(self._lock.is_acquired)


VARIANTS = {
    "blocking": Variant(
        Blocking, backend="zookeeper", claim=b"__lock__", leave=b"__lock__", granted=b"__lock__", leases=False
    )
}
