"""What the histories need of a system of servers: how its store is opened, what may happen to it, what it promises."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from leasehold.store_api import Opener
from leasehold_lab.history import Promise
from leasehold_lab.runtimes.harnesses import SimulatedHarness
from models.net import Host
from models.redis.commands import Rewrite
from models.scenario import Menu, Strike

FENCED = (Promise.FENCING, Promise.TOKENS, Promise.LOSS_NOTICE)
"""What holds even if the servers do not keep their word."""


@dataclass(frozen=True, slots=True)
class Spoilt:
    """How the lock is broken on purpose: the text of a script, or the store."""

    rewrite: Rewrite | None = None
    wrap: Callable[[Opener], Opener] = lambda opener: opener


GOOD = Spoilt()


class System(ABC):
    """One kind of servers. A subclass makes its hosts and its opener, and has a method for each fault of servers.

    Attributes:
        menu: what is drawn from.
        expiry_delay: seconds by which the store may be late to notice that a lease has run out.
        late: seconds that a waiter may take longer to learn that a name is free, beside the usual bound.
        linearizable: whether tokens and claims have the same order.
        tries: whether a try may not be refused while the name is free.
        reconnects: seconds that it takes at most until a client has a connection again, when one is to be had.
        passes_over: whether a fair waiter is passed over whose connection is down when its turn comes.
        holds_up: whether a client that stands still will hold up the renewals of others.
        removals: when the servers lost all that they had granted.
        promises: what must hold when the servers do not keep their word.

    """

    name: ClassVar[str]
    menu: ClassVar[Menu]
    expiry_delay: float = 0.0
    late: float = 0.0
    linearizable: ClassVar[bool] = True
    tries: bool = True
    reconnects: ClassVar[float] = 0.2
    passes_over: ClassVar[bool] = False
    holds_up: bool = False
    promises: ClassVar[Sequence[Promise]] = FENCED

    hosts: Sequence[Host]
    opener: Opener

    @property
    def serving(self) -> Sequence[Host]:
        """The servers on whose connections claims and messages travel."""
        return self.hosts

    def seen(self) -> str:
        """Return what the servers saw and must not happen while they keep their word; empty if nothing."""
        return ""

    @abstractmethod
    def __init__(self, harness: SimulatedHarness, rate: float, spoilt: Spoilt) -> None:
        """Make the servers; their clocks run at ``rate``."""
        self.harness = harness
        self.removals: list[float] = []

    def strike(self, one: Strike) -> float | None:
        """Let something happen to the servers; return for how many seconds it lasts, None if it did not happen."""
        hit: Callable[[Strike], float | None] = getattr(self, one.kind.name.lower())
        return hit(one)

    def foresee(self, one: Strike) -> None:
        """Get ready for what will happen: most need nothing."""
        return

    def host(self, one: Strike) -> Host:
        """Return the server that is hit."""
        return self.hosts[one.victim % len(self.hosts)]

    def forward(self, one: Strike) -> float:
        """Set a clock forward."""
        self.host(one).step(one.luck * 5.0)
        return 0.0
