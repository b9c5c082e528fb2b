"""The layouts on Redis, and their openers; see ``docs/interop.md``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module

from leasehold._runtimes.base import Runtime
from leasehold._url import StoreURL, Veiled
from leasehold.errors import Unsupported
from leasehold.layouts.redis.layout import Layout
from leasehold.layouts.redis.store import LayoutStore
from leasehold.store_api import Opener, Store
from leasehold.stores.redis import openers

LAYOUTS = ("plain", "python-redis-lock", "redisson", "spring")
"""The names in a URL; each is a module here, with ``_`` for ``-``."""

OPTIONS: Mapping[str, tuple[str, ...]] = {
    "plain": ("prefix",),
    "python-redis-lock": (),
    "redisson": (),
    "spring": ("registry",),
}
"""The options in the URL of each layout."""

SHEDLOCK = (
    "layout=shedlock is refused on Redis: there the late release of another program deletes the key without looking "
    "whose it is, and so frees a run of ours; share ShedLock's table in PostgreSQL or MySQL instead"
)

REFUSED = ("strict", "longest_lease", "quarantine")
"""Options of our own format, which other programs do not keep."""


@dataclass(frozen=True)
class Shared:
    """Opens locks in the format of another library, on the servers that another opener reaches."""

    on: Opener
    layout: Layout

    def __post_init__(self) -> None:
        """Refuse servers on which the other library's locks are not."""
        quorum = isinstance(self.on, openers.Redlock) and self.layout.quorum
        if isinstance(self.on, openers.Cluster):
            self.layout.on_cluster()
        elif not quorum and not isinstance(self.on, openers.Redis | openers.Sentinel):
            raise Unsupported(
                f"layout={self.layout.name} works on one Redis server and on the primary under Sentinel, not with "
                f"{type(self.on).__name__}; write redis://, rediss://, unix:// or redis+sentinel://"
            )

    def open(self, runtime: Runtime, namespace: str) -> Store:
        """Open the store; it connects at the first use."""
        match self.on:
            case openers.Redis(settings):
                return LayoutStore(runtime, settings, namespace, layout=self.layout)
            case openers.Sentinel(watched):
                from leasehold.layouts.redis.sentinel import SentinelLayoutStore

                return SentinelLayoutStore(runtime, watched, namespace, layout=self.layout)
            case openers.Cluster(seeds):
                from leasehold.layouts.redis.cluster import ClusterLayoutStore

                return ClusterLayoutStore(runtime, seeds, namespace, layout=self.layout.on_cluster())
            case openers.Redlock():
                from leasehold.layouts.redis.redlock import PlainRedlockStore

                return PlainRedlockStore(runtime, self.on._members, namespace, self.layout.prefix)
        raise AssertionError("refused when it was made")


def from_url(url: StoreURL) -> Opener:
    """Read the URL of a Redis store with ``?layout=NAME``.

    Raises:
        ValueError: an unknown layout or option.
        Unsupported: the layout cannot promise what an option asks for, or nothing on Redis.
    """
    name = url.options["layout"]
    if name == "shedlock":
        raise Unsupported(SHEDLOCK)
    if name not in LAYOUTS:
        raise ValueError(f"unknown layout {name!r} in the {url.scheme} URL; known are: {', '.join(LAYOUTS)}")
    for option in REFUSED:
        if option in url.options:
            raise Unsupported(
                f"layout={name} has no strict mode and no quarantine: the programs that share its locks would not keep "
                f"to them; leave {option}= out, or leave out layout="
            )
    own = {"layout", *OPTIONS[name]}
    given = {key: value for key, value in url.options.items() if key in own and key != "layout"}
    rest = {key: value for key, value in url.options.items() if key not in own}
    make: Callable[..., Layout] = import_module(f"{__name__}.{name.replace('-', '_')}").layout
    return Shared(openers.from_url(replace(url, options=Veiled(rest))), make(**given))
