"""Spring Integration's ``RedisLockRegistry``, both lock types: a string with the holder's id and a time to live.

The key is the registry key and the name. Each registry has one id, and Spring's scripts compare only that. Its type
``PUB_SUB_LOCK`` publishes the key at each release, on ``REGISTRY-channel:KEY``. ``SPIN_LOCK`` publishes nothing, and
polls ten times a second. So a release of ours publishes, and a waiter of ours subscribes and polls, too.
"""

from __future__ import annotations

from leasehold._model import Capabilities, Ticket
from leasehold.layouts.redis.layout import Layout
from leasehold.layouts.redis.plain import POLL
from leasehold.layouts.redis.scripts import Scripts

CAPABILITIES = Capabilities(
    fair=False,
    lock_delay=False,
    cells=False,
    hands_over=False,
    crash_bound="within the lease + 150 ms",
    why_not="Spring's RedisLockRegistry (layout=spring) knows a client and a lease, and nothing else: leave it out, or "
    "leave out layout= where no Spring program shares the name",
)


class Spring(Layout):
    """The keys and channels of one registry; the prefix is its name and a colon."""

    def topic(self, lock: bytes, ticket: Ticket) -> bytes:
        return self.prefix.removesuffix(":").encode() + b"-channel:" + lock


def layout(registry: str = "") -> Layout:
    """Return the layout for a registry.

    Raises:
        ValueError: it has no name.
    """
    if not registry:
        raise ValueError("layout=spring needs registry=NAME in the URL: the registryKey of the RedisLockRegistry")
    of = "Spring Integration's RedisLockRegistry"
    return Spring(
        "spring", of, CAPABILITIES, Scripts.of("spring"), f"{registry}:", POLL, topics=True, option="registry"
    )
