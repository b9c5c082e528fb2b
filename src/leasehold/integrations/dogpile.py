"""dogpile.cache: a value is computed by one process at a time, whatever the backend.

A proxy for ``wrap=``: dogpile asks the backend for the mutex of a key (`get_mutex`), and most have none to offer that
other processes see.
"""

from __future__ import annotations

import hashlib
import threading
from contextlib import suppress

from dogpile.cache.api import CacheMutex
from dogpile.cache.proxy import ProxyBackend

from leasehold import AcquireTimeout, Client, Hold, LeaseLost, _validate
from leasehold._validate import Seconds


class LockProxy(ProxyBackend):
    """A backend whose mutexes are locks: ``region.configure(..., wrap=[LockProxy(locks)])``.

    Args:
        client: acquires the locks, in any store; it need not be the cache's store.
        prefix: of the locks' names: the key ``report`` is ``dogpile/report``, and a long one is shown by its SHA-256.
        lease: seconds after which another computes the value if the process that did so has died.
        timeout: seconds to wait at most for another that computes a value; None waits without end.
    """

    def __init__(
        self, client: Client, *, prefix: str = "dogpile/", lease: Seconds = 30.0, timeout: Seconds | None = None
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        if not isinstance(client, Client):
            raise TypeError(f"the client must be a Client, not {type(client).__name__}: dogpile is blocking")
        self._options = (client, prefix, lease, timeout)
        client.lock(prefix + _hashed(""), lease=lease, timeout=timeout)  # the options, before any value is asked for

    def get_mutex(self, key: str) -> Mutex:
        """Return the mutex of a key, which the threads of this process share."""
        client, prefix, lease, timeout = self._options
        try:
            name = _validate.name(prefix + key)
        except ValueError:  # too long, as a key that contains an argument, or not UTF-8
            name = prefix + _hashed(key)
        return Mutex(client, name, lease, timeout)


def _hashed(key: str) -> str:
    return hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()


class Mutex(CacheMutex):
    """The lock of one key, as dogpile uses it: perhaps acquired in one thread and released in another."""

    def __init__(self, client: Client, name: str, lease: Seconds, timeout: Seconds | None) -> None:
        self._client = client
        self._name = name
        self._options = (lease, timeout)
        self._holds: list[tuple[int, Hold]] = []  # with the threads that acquired; a lost one, too, and its successor

    def acquire(self, wait: bool = True) -> bool:
        """Acquire, or return False at once if ``wait`` is false.

        Raises:
            AcquireTimeout: another computed the value for all of the ``timeout``; dogpile would continue after a False.
            StoreUnavailable: it is unknown whether another computes it.
        """
        lease, timeout = self._options
        holds, me = self._holds, threading.get_ident()
        # A lock object keeps its holds. In one that threads share, a hold would stay after this call was interrupted.
        hold = self._client.lock(self._name, lease=lease, timeout=timeout).acquire(wait)
        if hold is not None:
            holds += [(me, hold)]
            return True  # at once: a signal handler may raise in a call
        if wait:
            raise AcquireTimeout(f"another was still computing the value of {self._name!r}", name=self._name)
        return False

    def release(self) -> None:
        """Release what this thread acquired last, or else, as the thread of an ``async_creator``, the oldest hold.

        The oldest may be a lost one of another runner: then this one's lock is held until that runner has ended, too.
        A lost lease is no error here: the value is as good as before, another may have computed it, too.
        """
        me = threading.get_ident()
        own = [each for each in reversed(self._holds) if each[0] == me]
        for each in (*own, *self._holds):
            try:
                self._holds.remove(each)
            except ValueError:  # another thread releases it just now
                continue
            with suppress(LeaseLost):
                each[1].release()
            return

    def locked(self) -> bool:
        """Return whether the value is being computed now."""
        info = self._client.inspect(self._name)
        return info is not None and bool(info.holders)
