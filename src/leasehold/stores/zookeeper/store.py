"""The ZooKeeper store: a lock is a node, its contenders are ephemeral children in Curator's order.

Theory of operation
-------------------
Each client has one session; all its nodes end with it. The server alone decides when that is, and a client that is cut
off is not notified. So a hold is valid for a part of the session's timeout after the last request that the *leader* has
confirmed, counted from before the request was sent.

Why only a part, `VALID`: the leader expires a session when its timeout has passed since the leader last learned of a
request. A client talks to any member. A member answers reads by itself, and reports its active sessions to the leader
only at the next tick. A member that is cut off from its leader still answers for some ticks. So a renewal asks the
leader (`sync`). That proves that the member was connected and had reported the client's earlier requests. The driver
sends something every third of the timeout. So the leader's count is older than the renewal by at most that third and
half a tick.

A lost connection puts all holds in doubt at once. The driver connects again, to another member if needed, and the next
renewal ends the doubt. When a server reports that the session has expired, all holds are lost at once, and the next
acquire begins in a new session.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from leasehold._model import (
    RESPONSE_TIMEOUT,
    Capabilities,
    Cell,
    Change,
    Finding,
    Granted,
    ReleaseReason,
    RenewalResult,
    Ticket,
    View,
    Wait,
)
from leasehold._runtimes.base import Runtime
from leasehold.errors import StoreUnavailable
from leasehold.store_api import LossCallback
from leasehold.stores.zookeeper import inspecting
from leasehold.stores.zookeeper.acquiring import Acquirer, Blocked
from leasehold.stores.zookeeper.cells import Cells
from leasehold.stores.zookeeper.connection.requests import Node
from leasehold.stores.zookeeper.connection.session import LinkEvent, Session, Transport
from leasehold.stores.zookeeper.connection.settings import Settings
from leasehold.stores.zookeeper.expiry import ExpiryJob
from leasehold.stores.zookeeper.nodes import Paths, owner_of
from leasehold.stores.zookeeper.queue_nodes import Signals, TicketState
from leasehold.stores.zookeeper.tickets import Tickets

VALID = 0.6
"""Part of the session's timeout for which a confirmed request proves that it lives: two thirds, less a tick."""

PATIENCE = 10.0
"""Seconds that an operation without a limit of its own may take."""

ASK_AGAIN = 60.0
"""Seconds after which a waiter retries without an event. Watches are reliable; this is a backstop."""


class ZooKeeperStore:
    """See `leasehold.store_api.Store` for what each method promises."""

    capabilities = Capabilities(
        shared=True,
        permits=True,
        lock_delay=False,
        watches=True,
        crash_bound="within the session's timeout and one tick of the server",
    )

    def __init__(
        self,
        runtime: Runtime,
        namespace: str,
        settings: Settings,
        chroot: str,
        make: Callable[[Callable[[LinkEvent], None]], Transport] | None = None,
    ) -> None:
        """Make a store. ``make`` replaces the transport, as for a model; it takes a callback for link events."""
        self._runtime = runtime
        self._settings = settings
        self._paths = Paths(chroot, namespace)
        self._on_loss: LossCallback | None = None
        self._transport = (
            Transport(runtime, settings, self._on_link_event) if make is None else make(self._on_link_event)
        )
        self._start()

    def _start(self) -> None:
        self._tickets = Tickets(self._runtime)
        self._states = self._tickets.current
        self._wake_ups = Signals(self._runtime)
        self._acquirer = Acquirer(self._transport, self._wake_ups, self._runtime.now)
        self._cells = Cells(self._transport, self._acquirer, self._paths, self._runtime)
        self._expiry = ExpiryJob(self._runtime, self._tickets, self._wake_ups, self._acquirer.remove, self._session)

    # --- the queue -----------------------------------------------------------------------------------------------

    async def try_acquire(self, name: str, ticket: Ticket, *, join: bool, within: float) -> Granted | Wait:
        until = self._runtime.now() + within
        session, state = await self._transport.ready(until), None
        try:
            while (state := self._state_for(name, ticket, session, until)) is None:
                await self._expiry.finish(ticket.id, until)
            while True:
                with self._tickets.mutex:  # a state that is over is not extended: its nodes are being removed
                    state.raise_if_over()
                    since = self._runtime.now()
                    state.until = since + self._lasts(state, session)
                self._expiry.watch(state.until)
                answer = await self._try_once(state, since, session, join=join, until=until)
                if answer is not None:
                    return answer
        except StoreUnavailable as error:  # also one of a later step, which was not carried out itself
            error.unknown = error.unknown or state is None or bool(state.nodes) or state.uncertain
            raise
        finally:
            self._tickets.acquiring.pop(ticket.id, None)

    async def _try_once(
        self, state: TicketState, since: float, session: Session, *, join: bool, until: float
    ) -> Granted | Wait | None:
        length = self._length(state.ticket, session)
        if state.token is not None:
            if await self._nodes_exist(state, until):
                return Granted(state.token, since, length)
            state.token = None
            self._expire_after(state, since, session)
        verdict = await self._acquirer.try_enter(state, join=join, until=until)
        if state.session != session.id:
            raise StoreUnavailable(f"ZooKeeper: the session expired while {state.name!r} was acquired", unknown=True)
        if isinstance(verdict, Blocked):
            return await self._blocked(state, verdict, join=join, until=until)
        state.token = verdict
        self._expire_after(state, since, session)
        return Granted(verdict, since, length)

    async def _blocked(self, state: TicketState, verdict: Blocked, *, join: bool, until: float) -> Wait | None:
        if join:
            waits, holder = await self._acquirer.watch(
                state, verdict.path, verdict.holder, until, listing=verdict.listing
            )
            return Wait(None, ASK_AGAIN, None if holder is None else owner_of(holder.data)) if waits else None
        await self._acquirer.remove(state, until)
        self._states.pop(state.ticket.id, None)
        (holder,) = await self._transport.ask_all((self._transport.get(verdict.holder),), until)
        return Wait(None, ASK_AGAIN, owner_of(holder.data) if isinstance(holder, Node) else None)

    async def _nodes_exist(self, state: TicketState, until: float) -> bool:
        """Return whether the nodes of a holder exist, in a session that the leader knows."""
        nodes = await self._read(list(state.nodes), until)  # a list: a release may remove some meanwhile
        lost = [path for path, node in nodes.items() if not isinstance(node, Node)]
        for path in lost:
            state.nodes.pop(path, None)
        return not lost

    async def _read(self, paths: Sequence[str], until: float) -> dict[str, object]:
        """Return the node at each path, or the error, after the leader has confirmed that it knows the session."""
        requests = [self._transport.sync(self._paths.space), *map(self._transport.get, paths)]
        _, *answers = await self._transport.ask_all(requests, until)
        return dict(zip(paths, answers, strict=True))

    async def release(self, name: str, ticket: Ticket, *, reason: ReleaseReason, within: float) -> bool:
        """Remove ``ticket``; the server notifies the waiters for its node."""
        until = self._runtime.now() + within
        with self._tickets.mutex:
            state = self._states.pop(ticket.id, None)
            under_way = ticket.id in self._tickets.acquiring  # a try that may send a create after our removal
        if state is None:  # of another client, or expired
            paths = await self._acquirer.paths_of(ticket, self._paths.lock(name), until)
            return await self._acquirer.remove_all(paths, until)
        state.over = True
        self._wake_ups.forget(state.wake_up)
        if state.session != (session := self._session()) and not state.may_be_in(session):
            return False  # its nodes ended with their session
        uncertain = state.uncertain = state.uncertain or under_way
        try:
            found = await self._acquirer.remove(state, until)
        except BaseException:
            self._expiry.remove_later(state, uncertain=uncertain)
            raise
        if under_way or (uncertain and not found):
            self._expiry.remove_later(state, uncertain=True)
        return found

    async def renew(self, tickets: Sequence[tuple[str, Ticket]], *, within: float) -> Sequence[RenewalResult]:
        """Ask the leader whether the session lives, and the server whether each node exists."""
        now, session = self._runtime.now(), self._transport.session
        states = [self._states.get(ticket.id) for _, ticket in tickets]
        tokens = [None if state is None else state.token for state in states]  # first: a grant sets it last
        nodes = [list(state.nodes) if state and state.session == self._session() else [] for state in states]
        paths = [path for of_one in nodes for path in of_one]
        found = await self._read(paths, now + within) if paths else {}
        return [self._result(*asked, found, now, session) for asked in zip(states, tokens, nodes, strict=True)]

    def _result(
        self,
        state: TicketState | None,
        token: int | None,
        paths: Sequence[str],
        found: Mapping[str, object],
        now: float,
        session: Session | None,
    ) -> RenewalResult:
        """Return the result for a state that had this token and these nodes when the request was sent."""
        if state is None or state.over or session is None or not self._exist(paths, found, state.session, token):
            if state is None:
                return RenewalResult.GONE
            state.wake_up.set()  # a waiter must retry
            # an acquire that has changed the nodes meanwhile returns something newer, and its grant must not be lost
            overtaken = not state.over and (state.token != token or state.ticket.id in self._tickets.acquiring)
            return RenewalResult.QUEUED if overtaken else RenewalResult.GONE
        state.until = max(state.until, now + self._lasts(state, session))
        return RenewalResult.QUEUED if token is None else RenewalResult.HELD

    @staticmethod
    def _exist(paths: Sequence[str], found: Mapping[str, object], session: int, token: int | None) -> bool:
        """Return whether a holder has all its nodes, or a waiter any: one that enters leaves its queue node behind."""
        nodes = [found.get(path) for path in paths]
        exist = [isinstance(node, Node) and node.owner == session for node in nodes]
        return any(exist) if token is None else bool(exist) and all(exist)

    async def wait(self, name: str, ticket: Ticket, mark: object, *, timeout: float) -> Granted | None:
        """Sleep until the node ahead is gone, the connection is lost, or the ticket is released or has expired."""
        state = self._states.get(ticket.id)
        if state is not None:
            await state.wake_up.wait(timeout)
        return None

    # --- inspection and cells ------------------------------------------------------------------------------------

    async def inspect(self, prefix: str, *, exact: bool = False, within: float = RESPONSE_TIMEOUT) -> list[View]:
        def until() -> float:
            return self._runtime.now() + within

        return await inspecting.inspect(self._transport, self._paths, prefix, exact=exact, until=until)

    async def compare_and_set(self, name: str, change: Change, *, within: float = RESPONSE_TIMEOUT) -> Cell:
        return await self._cells.change(name, change, self._runtime.now() + within)

    async def wait_for_cell(self, name: str, version: int, *, timeout: float) -> None:
        await self._cells.changed(name, version, self._runtime.now() + timeout)

    async def diagnose(self) -> list[Finding]:
        """Check the servers' settings and our rights, and explain what they mean for the promises."""
        from leasehold.stores.zookeeper.doctor import diagnose

        return await diagnose(self._acquirer, self._settings, self._paths, self._runtime.now() + PATIENCE)

    # --- session and fork --------------------------------------------------------------------------------------------

    def report_losses(self, callback: LossCallback) -> None:
        """Call ``callback`` with the state of tickets when the connection is lost or the session has expired."""
        self._on_loss = callback

    def _on_link_event(self, link: LinkEvent) -> None:
        if link is LinkEvent.UP or self._on_loss is None:
            return
        if link is LinkEvent.DOWN:
            self._on_loss(RenewalResult.UNKNOWN, None)
            return
        with self._tickets.mutex:
            ended = list(self._states)
        self._on_loss(RenewalResult.GONE, ended)
        self._wake_ups.set(None)

    async def close(self) -> None:
        self._expiry.stop()
        await self._transport.close()
        await self._expiry.close(1.0)

    def after_fork(self) -> None:
        """Forget, in a forked child, the session and the tickets: they are the parent's."""
        self._transport.after_fork()
        self._start()

    def _state_for(self, name: str, ticket: Ticket, session: Session, until: float) -> TicketState | None:
        """Return the ticket's state for an acquire, which is under way now; None if nodes of an ended one are left."""
        with self._tickets.mutex:
            self._tickets.acquiring[ticket.id] = until
            state = self._states.get(ticket.id)
            if state is None:
                if ticket.id in self._tickets.ended:
                    return None
                state = TicketState(name, self._paths.lock(name), ticket, self._runtime.signal(), session.id)
                self._states[ticket.id] = state
        if state.session != session.id:
            state.forget_nodes(session.id)
        return state

    def _session(self) -> int:
        session = self._transport.session
        return 0 if session is None else session.id

    def _expire_after(self, state: TicketState, since: float, session: Session) -> None:
        state.until = since + self._lasts(state, session)
        self._expiry.watch(state.until)

    def _lasts(self, state: TicketState, session: Session) -> float:
        """Return for how long a state lasts: a waiter is renewed each third of its lease, however short the session."""
        return state.ticket.terms.lease if state.token is None else self._length(state.ticket, session)

    @staticmethod
    def _length(ticket: Ticket, session: Session) -> float:
        return min(ticket.terms.lease, session.timeout * VALID)

    def __repr__(self) -> str:
        return f"<ZooKeeperStore {self._settings.where}{self._paths.chroot}>"
