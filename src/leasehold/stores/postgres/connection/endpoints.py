"""The hosts of a URL and the addresses of their names: each is tried alone, for its share of the time.

libpq tries a list of hosts by itself. But when it is driven without blocking, as here, it has no time limit for a host:
its connect_timeout limits its blocking calls only. So a first host that is silent, such as one without power, would
take all the time of each call, and the next would never be asked.

* Each endpoint gets its share of the time, and a silent one is tried last: see `Silent`.
* A refused login ends the list, as in libpq. A server that is starting, or of another kind than
  ``target_session_attrs`` asks for, does not. Nor does a standby.
* Locks need a primary, so ``prefer-standby``, which a single host of either kind satisfies, prefers nothing.
* With ``load_balance_hosts=random`` hosts, and the addresses of each, are tried in a random order.
* Hosts that only libpq knows, from a service file or the environment, are left to it, in one attempt.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Iterable, Sequence
from ipaddress import ip_address
from typing import Any, NamedTuple, Protocol, TypeVar

from leasehold._runtimes.base import Runtime
from leasehold.stores._sql.transport import Silent
from leasehold.stores.postgres.connection.errors import Broken, ends_the_list
from leasehold.stores.postgres.connection.settings import Settings

C = TypeVar("C")
Made_co = TypeVar("Made_co", covariant=True)


class Endpoint(NamedTuple):
    """One host, or one address of it; what is empty is left to libpq."""

    host: str = ""
    port: str = ""
    address: str = ""

    @property
    def options(self) -> dict[str, str]:
        """What libpq gets of it. An empty one would count as given: libpq would not read PGPORT or the service file."""
        named = {"host": self.host, "port": self.port, "hostaddr": self.address}
        return {key: value for key, value in named.items() if value}

    @property
    def is_name(self) -> bool:
        """Whether its addresses must be looked up."""
        return bool(self.host) and not self.address and not self.host.startswith(("/", "@")) and not _is_ip(self.host)

    def failed(self, why: str) -> str:
        """Return an error's text as libpq words its own, with the host."""
        if self.is_name:
            return f'could not translate host name "{self.host}": {why}'
        if not self.host and not self.address:
            return why
        by = f" ({self.address})" if self.host and self.address else ""
        port = f", port {self.port}" if self.port else ""
        return f'connection to server at "{self.host or self.address}"{by}{port} failed: {why}'


class Attempt(Protocol[Made_co]):
    """Opens a connection before a deadline on the boot-time clock, and checks the server."""

    async def __call__(self, settings: Settings, endpoint: Endpoint, until: float) -> Made_co: ...


Lookup = Callable[[str, float], Coroutine[Any, Any, Sequence[str]]]
"""Returns the addresses of a host, within so many seconds."""


class Endpoints:
    """Finds the one that answers, for one client. Used by many threads or tasks at once."""

    def __init__(self, runtime: Runtime, lookup: Lookup) -> None:
        self._runtime = runtime
        self._lookup = lookup
        self._silent = Silent[Endpoint]()

    async def first(self, settings: Settings, attempt: Attempt[C], until: float) -> C:
        """Return the connection to the first endpoint that can be used.

        Raises:
            Broken: there was none in time; the text has the reason of each.
            Exception: whatever else an attempt raises; it ends the list.
        """
        waiting, failed, share = self._in_order(endpoints_of(settings), settings), list[str](), until
        while waiting:
            now = self._runtime.now()
            if now >= until:
                failed.append("timed out")
                break
            limit, share = self._silent.limit(waiting, now, until), min(share, (until - now) / len(waiting))
            endpoint = waiting.pop(0)
            try:
                if endpoint.is_name:
                    addresses = await self._resolved(endpoint.host, limit - now)
                    found = [endpoint._replace(address=address) for address in addresses]
                    waiting = self._silent.last([*self._in_order(found, settings), *waiting])
                else:
                    connection = await attempt(settings, endpoint, limit)
                    self._silent.note(endpoint, share, now, self._runtime.now(), answered=True)
                    return connection
            except TimeoutError:
                failed.append(endpoint.failed("the DNS did not answer in time" if endpoint.is_name else "timed out"))
            except Broken as error:
                failed.append(str(error))
                if ends_the_list(str(error)):
                    waiting.clear()
            self._silent.note(endpoint, share, now, self._runtime.now())
        raise Broken(" ".join(failed))

    async def _resolved(self, host: str, within: float) -> Sequence[str]:
        try:
            return await self._lookup(host, within)
        except TimeoutError:
            raise
        except (OSError, UnicodeError) as error:  # Python's resolver refuses a label that is empty or too long
            raise Broken(f'could not translate host name "{host}": {error}') from None

    def _in_order(self, endpoints: Iterable[Endpoint], settings: Settings) -> list[Endpoint]:
        random = (settings.options.get("load_balance_hosts") or os.environ.get("PGLOADBALANCEHOSTS")) == "random"
        return self._silent.last(sorted(endpoints, key=lambda _: self._runtime.jitter() if random else 0.0))


def endpoints_of(settings: Settings) -> list[Endpoint]:
    """Return the hosts of the settings; a single endpoint with nothing in it to leave them to libpq."""
    hosts, ports, addresses = (str(settings.options.get(key) or "").split(",") for key in ("host", "port", "hostaddr"))
    number = max(len(hosts), len(addresses))
    hosts = hosts * number if hosts == [""] else hosts
    addresses = addresses * number if addresses == [""] else addresses
    ports = ports * number if len(ports) == 1 else ports
    elsewhere = "service" in settings.options or ("PGHOSTADDR" in os.environ and "hostaddr" not in settings.options)
    elsewhere |= ports[0] == "" and "," in os.environ.get("PGPORT", "")
    gaps = any("" in values and any(values) for values in (hosts, ports, addresses))
    if elsewhere or gaps or not number == len(hosts) == len(ports) == len(addresses):
        return [Endpoint()]  # libpq knows what a gap stands for, and says what is wrong with lists of other lengths
    return [Endpoint(*one) for one in zip(hosts, ports, addresses, strict=True)]


def _is_ip(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
