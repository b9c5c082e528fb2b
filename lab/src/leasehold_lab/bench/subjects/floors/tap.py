"""Records what leasehold sends for one acquire and one release, so that the floor can send the very same bytes."""

from __future__ import annotations

from dataclasses import dataclass

from leasehold import Client
from leasehold_lab.bench.processes.relay import Relay
from leasehold_lab.bench.subjects.base import Scope

NAME = "%07d"
"""Form of the names: all have one length, so one recording serves for all: only the name is replaced."""


@dataclass(frozen=True, slots=True)
class Recording:
    """The packed commands of one acquire, of its release, and of a try that is refused, for the name of number 0."""

    acquire: bytes
    release: bytes
    attempt: bytes

    def renamed(self, name: str) -> Recording:
        """Return the same for another name of the form `NAME`."""
        old, new = (NAME % 0).encode(), name.encode()
        if len(old) != len(new):
            raise ValueError(f"{name!r} is not of the form {NAME!r}")
        return Recording(*(part.replace(old, new) for part in (self.acquire, self.release, self.attempt)))


def record(scope: Scope) -> Recording:
    """Let two clients of leasehold acquire through a recording relay."""
    tap = Relay(scope.address)
    url = f"redis://{_userinfo(scope)}127.0.0.1:{tap.port}/{scope.database}"
    name = NAME % 0
    try:
        with _client(url, scope) as one, _client(url, scope) as two:
            for client in (one, two):
                client.lock(NAME % 1).acquire().release()  # type: ignore[union-attr]  # connects
            tap.take()
            hold = one.lock(name).acquire()
            acquire = tap.take()
            two.lock(name).acquire(blocking=False)
            attempt = tap.take()
            hold.release()  # type: ignore[union-attr]
            release = tap.take()
    finally:
        tap.close()
    for what, command in (("acquire", acquire), ("release", release), ("try", attempt)):
        if command.count(b"*") < 1 or command.count(b"\r\n*") > 0:
            raise RuntimeError(f"leasehold sent more than one command for one {what}; the floor has no form for that")
    return Recording(acquire, release, attempt)


def _client(url: str, scope: Scope) -> Client:
    return Client.from_url(url, namespace=scope.namespace)


def _userinfo(scope: Scope) -> str:
    return scope.url.partition("://")[2].rpartition("@")[0] + "@" if "@" in scope.url else ""
