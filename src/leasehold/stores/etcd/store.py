"""The etcd store: ordered keys under leases, one watch, and each decision by a transaction.

Theory of operation
-------------------
``acquiring.py`` finds the holder, and ``sessions.py`` keeps its lease. ``waiting.py`` wakes the waiters.
``renewing.py`` renews the leases. This file implements the `Store` protocol with them.

A grant counts from the keep-alive that was sent before the granting transaction, if that transaction confirms the
keep-alive (``sessions.py``). It does not if etcd has another leader by then. In that case the client renews the lease
once more before it uses the grant. A deletion that the watch reports is only a wake-up: the waiter sends its
transaction again, which reads its own key. If its lease has ended meanwhile, its key is gone, and the waiter joins the
queue again.

Acquires and renewals keep a shared session alive, and with it the keys of tickets that nobody renews any more, as
after a failed release. So both delete the keys of the client's expired tickets.

An acquire request without a response may still arrive, and so may one that is under way when `cancel` releases. So its
release writes a *tombstone* under the same lease. An acquire request that arrives after its release finds the tombstone
and does nothing. The prefix of tombstones in etcd is ``grave/``.

A deletion without a response may arrive late, too. So a ticket whose key was deleted, and whose acquire continues, gets
a key under another session: neither the deletion nor the tombstone of the old key concerns the new one.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import TYPE_CHECKING

from leasehold._model import (
    RESPONSE_TIMEOUT,
    Capabilities,
    Cell,
    Change,
    Finding,
    Granted,
    Kind,
    ReleaseReason,
    RenewalResult,
    Ticket,
    View,
    Wait,
)
from leasehold._runtimes.base import Flavor, Runtime
from leasehold.errors import NameInUse, StoreUnavailable, Unsupported
from leasehold.stores._common.answers import answered
from leasehold.stores.etcd import inspecting
from leasehold.stores.etcd.acquiring import SharedAcquire, Verdict, acquire_mutex
from leasehold.stores.etcd.cells import Cells
from leasehold.stores.etcd.connection.errors import Refused
from leasehold.stores.etcd.connection.gateway import Gateway
from leasehold.stores.etcd.connection.settings import Settings
from leasehold.stores.etcd.http.base import Http
from leasehold.stores.etcd.keys import Json, Keys, deleted, key_of, only, removed, span, txn
from leasehold.stores.etcd.renewing import PER_REMOVAL, Renewals
from leasehold.stores.etcd.sessions import Sessions
from leasehold.stores.etcd.waiting import TicketState, Watch

if TYPE_CHECKING:
    from leasehold.stores.etcd.guarded import GuardedWrites

IDLE = 10
"""After so many leases a waiter retries without a wake-up. Usually the watch or a renewal wakes it earlier."""

SWEEP_PAUSE = 1.0
"""Seconds between two sweeps of expired tickets, at least."""

RETRY_AFTER = 0.05
"""Seconds after which an acquire that found its own tombstone is retried."""

CLOSE_WITHIN = 1.0
"""Seconds for the watch to end."""


class EtcdStore:
    """See `leasehold.store_api.Store` for what each method promises."""

    capabilities = Capabilities(
        shared=True,
        permits=True,
        lock_delay=False,
        shortest=1.0,
        expiry_delay=1.0,
        restarts=True,
        crash_bound="within the lease (in whole seconds, at least the server's minimum) + about 1 s",
    )

    def __init__(self, runtime: Runtime, settings: Settings, namespace: str, http: Http | None = None) -> None:
        """Make a store. ``http`` replaces the connections, for example by a model of the servers."""
        if runtime.flavor is Flavor.SIMULATED and http is None:
            raise Unsupported("a real etcd cannot be reached from the simulated runtime; use a memory: store there")
        self._runtime = runtime
        self._settings = settings
        self._namespace = namespace
        self._keys = Keys.of(settings, namespace)
        self._gateway = Gateway(runtime, settings, http)
        self._sessions = Sessions(runtime, self._gateway, self._keys)
        self._watch = Watch(runtime, self._gateway, self._keys)
        self._cells = Cells(runtime, self._gateway, self._sessions)
        self._renewals = Renewals(runtime, self._gateway, self._sessions, self._watch, self._keys)
        self._states: dict[str, TicketState] = {}
        self._sweep_at = 0.0  # boot-time clock

    # --- the store protocol ------------------------------------------------------------------------------------

    async def try_acquire(self, name: str, ticket: Ticket, *, join: bool, within: float) -> Granted | Wait:
        now = self._runtime.now()
        until = now + within
        if now >= self._sweep_at:
            await self._sweep(now, now + within / 2, but=self._states.get(ticket.id))
        while True:
            state = await self._state_for(name, ticket, until)
            try:
                verdict = await self._send_acquire(state, join=join, until=until)
                has_key = verdict.token or join or state.held
                if has_key and not await self._sessions.settle(state.session, state.renewal, until):
                    self._forget(state)  # its lease has ended
                    continue
                if verdict.token:
                    return self._granted(state, verdict)
                if state.unknown and not has_key:
                    await self._ensure_removed(state, until)
                return self._wait_for(state, verdict, join=join)
            except StoreUnavailable as error:
                # This request was perhaps not carried out, but an earlier one was: the caller has to release.
                error.unknown = error.unknown or state.written or state.unknown
                raise
            except Refused:  # its lease has ended
                self._sessions.ended(state.session)
                self._forget(state)
            finally:
                state.acquiring = False

    async def release(self, name: str, ticket: Ticket, *, reason: ReleaseReason, within: float) -> bool:
        state, until = self._states.get(ticket.id), self._runtime.now() + within
        if state is None:
            return await self._remove_foreign(name, ticket.id, until)
        self._watch.stop(state)
        state.set()  # a caller may still wait, as when the client closes
        state.unknown = state.unknown or state.acquiring  # its request may arrive after this one
        try:
            response = await self._gateway.call("/v3/kv/txn", txn([], state.removal()), until)
        except Refused:
            self._sessions.ended(state.session)  # its key ended with it
            response = {}
        self._forget(state)
        if not state.unknown:
            self._sessions.give_back(state.session)
        return removed(response, 0) > 0

    async def renew(self, tickets: Sequence[tuple[str, Ticket]], *, within: float) -> Sequence[RenewalResult]:
        states, now = [self._states.get(ticket.id) for _, ticket in tickets], self._runtime.now()
        abandoned = self._begin_removals(now, asked=set(states))
        results, not_removed = await self._renewals.renew(states, abandoned, now + within)
        gone = [one for one, result in zip(states, results, strict=True) if one and result is RenewalResult.GONE]
        # Not if the session has ended: a former leader may have said so, and then the key must exclude others until the
        # holder was notified. The key ends with the session, which is not renewed any more.
        unsure = [one for one in gone if one.held and one.unknown and not one.session.over]
        not_removed |= set(await self._renewals.remove_keys(unsure, now + within))
        for one in [*gone, *abandoned]:
            if (one.held or one in abandoned) and one not in not_removed:
                self._forget(one)
        return answered(results)

    async def wait(self, name: str, ticket: Ticket, mark: object, *, timeout: float) -> Granted | None:
        state = self._states.get(ticket.id)
        if state is None or not isinstance(mark, int):
            return None
        if not state.notified and state.blockers and not self._watch.listen(mark):
            return None  # the watch began after that revision: retry once
        if not state.notified:
            await state.signal.wait(timeout)
        state.signal.clear()
        state.notified = False
        if self._watch.denied is not None and state.blockers:
            self._watch.listen(mark)  # raises the reason
        return None

    async def inspect(self, prefix: str, *, exact: bool = False, within: float = RESPONSE_TIMEOUT) -> list[View]:
        return await inspecting.inspect(self._runtime, self._gateway, self._keys, prefix, exact=exact, within=within)

    async def compare_and_set(self, name: str, change: Change, *, within: float = RESPONSE_TIMEOUT) -> Cell:
        return await self._cells.change(self._keys.cell(name), change, self._runtime.now() + within)

    # --- life cycle, and requests of guards --------------------------------------------------------------------

    async def diagnose(self) -> list[Finding]:
        from leasehold.stores.etcd import doctor

        return await doctor.diagnose(self._runtime, self._gateway, self._settings, self._keys)

    async def close(self) -> None:
        try:
            await self._watch.close(CLOSE_WITHIN)
            await self._sessions.revoke_all()
        finally:
            await self._gateway.close()

    def after_fork(self) -> None:
        self._gateway.after_fork()
        self._sessions.forget()
        self._watch.forget()
        self._states = {}

    def guard_of(self, ticket: str) -> tuple[str, Kind, GuardedWrites] | None:
        """Return the key of a ticket of this client, its kind, and the guarded writes under it."""
        state = self._states.get(ticket)
        return None if state is None else (state.key, state.ticket.terms.mode.kind, state.guard(self._runtime))

    async def send(self, path: str, body: Json, *, within: float) -> Json:
        """Send a request of a guard."""
        try:
            return await self._gateway.call(path, body, self._runtime.now() + within)
        except Refused as refused:
            raise refused.unavailable(self._settings.where) from None

    # --- acquiring ---------------------------------------------------------------------------------------------

    async def _state_for(self, name: str, ticket: Ticket, until: float) -> TicketState:
        """Return the ticket's state under a live, recently renewed session, and mark an acquire as under way."""
        state, sessions = self._states.get(ticket.id), self._sessions
        if state is not None:
            if await self._begin_acquire(state, until):
                return state
            self._forget(state)
        session_for = sessions.own if ticket.terms.fixed else sessions.shared
        session, renewal = await session_for(ticket.terms.lease, until)
        state = TicketState(self._runtime, name, ticket, session, renewal, self._keys)
        self._states[ticket.id] = state
        return state

    async def _begin_acquire(self, state: TicketState, until: float) -> bool:
        """Mark an acquire as under way if the session lives and the key is not being removed; else remove the key.

        Raises:
            StoreUnavailable: the removal is not confirmed.
        """
        usable = False
        try:
            if not state.begin_acquire():
                await self._ensure_removed(state, until)
            elif (renewal := await self._sessions.fresh(state.session, until)) is not None:
                state.renewal, usable = renewal, True
        finally:
            state.acquiring = usable
        return usable

    async def _ensure_removed(self, state: TicketState, until: float) -> None:
        """Ensure that a key is deleted, and that no late acquire request writes it again.

        Raises:
            StoreUnavailable: that is not confirmed.
        """
        for reason in (await self._renewals.remove_keys([state], until)).values():
            what = f"the key of an older request for {state.name!r} may still exist: {reason}"
            raise StoreUnavailable(what, unknown=True) from reason

    async def _send_acquire(self, state: TicketState, *, join: bool, until: float) -> Verdict:
        if self._runtime.now() >= until:
            raise StoreUnavailable("no time was left to send the acquire request", unknown=False)
        try:
            if state.ticket.terms.mode.kind is Kind.MUTEX:
                return await acquire_mutex(self._gateway, state, until, join=join)
            return await SharedAcquire(self._runtime, self._gateway, state, until).try_acquire(join=join)
        except StoreUnavailable as error:
            state.unknown = state.unknown or error.unknown
            raise
        except (Refused, NameInUse):
            raise
        except BaseException:
            state.unknown = True  # cancelled: the request may still arrive
            raise

    async def _sweep(self, now: float, until: float, *, but: TicketState | None) -> None:
        """Delete the keys of expired tickets, as after a failed release: acquires may keep their session alive, too.

        Not that of the ticket ``but``, whose own acquire continues: if its session lives, it keeps its queue entry.
        """
        self._sweep_at = now + SWEEP_PAUSE
        self._sessions.forget_ended(now)
        if abandoned := self._begin_removals(now, asked={but})[:PER_REMOVAL]:
            not_removed = await self._renewals.remove_keys(abandoned, until)
            for one in abandoned:
                if one not in not_removed:
                    self._forget(one)

    def _begin_removals(self, now: float, asked: Set[TicketState | None]) -> list[TicketState]:
        """Begin to remove the expired tickets, except those ``asked`` for; return those whose session may live on."""
        living = list[TicketState]()
        for one in list(self._states.values()):
            if now >= one.until and one not in asked and one.begin_removal(now):
                one.set()  # a waiter joins the queue again
                if one.session.shared:
                    living.append(one)
                else:
                    self._forget(one)  # nobody renews its session, which ends by itself
        return living

    def _granted(self, state: TicketState, verdict: Verdict) -> Granted:
        self._watch.stop(state)
        state.held = True
        state.until = state.session.until
        return Granted(verdict.token, state.session.confirmed, state.session.length)

    def _wait_for(self, state: TicketState, verdict: Verdict, *, join: bool) -> Wait:
        state.until = state.session.until
        held_by = None if verdict.held_by is None else verdict.held_by.ticket.terms.owner
        if not join and not state.held:
            self._forget(state)
            if not state.unknown:
                self._sessions.give_back(state.session)
        elif verdict.blockers:
            self._watch.wait_for(state, verdict.blockers, verdict.revision)
            if self._states.get(state.ticket.id) is not state:  # it was released meanwhile, as by `cancel`
                self._watch.stop(state)
        again = IDLE * state.session.length if verdict.blockers else RETRY_AFTER
        return Wait(verdict.revision, again, held_by)

    async def _remove_foreign(self, name: str, ticket: str, until: float) -> bool:
        """Remove a ticket of another client, or of another program (a forced release)."""
        in_queue = span(self._keys.queue(name))
        response = await self._gateway.call("/v3/kv/range", {**in_queue, "keys_only": True}, until)
        for key in map(key_of, response.get("kvs", [])):
            entry = key.rpartition("/")[2]
            if ticket in (entry, entry.partition("-")[2]):
                return removed(await self._gateway.call("/v3/kv/txn", txn([], [deleted(only(key))]), until), 0) > 0
        return False

    def _forget(self, state: TicketState) -> None:
        if state.being_removed:
            self._sessions.retire(state.session)  # its acquire may continue, and must get another key
        if self._states.get(state.ticket.id) is state:
            del self._states[state.ticket.id]
        self._watch.stop(state)  # afterwards: an acquire under way may list it meanwhile

    def __repr__(self) -> str:
        return f"<EtcdStore {self._settings.where} namespace={self._namespace!r}>"
