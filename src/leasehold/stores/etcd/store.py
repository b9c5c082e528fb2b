"""The etcd store: ordered keys under leases, one watch, and no decision that is not a transaction's.

Theory of operation
-------------------
``mutex.py`` and ``shared.py`` say who holds; ``sessions.py`` how long; ``waiting.py`` how who waits is told;
``renewing.py`` how all of it is kept alive. This file joins them to the `Store` port.

A grant counts from a keep-alive before the transaction that granted, which is what confirms it (``confirming.py``). If
it does not, for etcd has another leader, the lease is renewed once more before the grant is believed. A waiter does not
believe the deletion it hears of: it asks again, and the transaction reads its own key. If its lease has ended
meanwhile, its key is gone with it, and it stands in the queue anew.

Of a claim without an answer nobody knows whether it will still arrive. Its leave therefore leaves a *grave* under the
same lease: the claim looks for that, so it does nothing when it arrives late.
"""

from __future__ import annotations

from collections.abc import Sequence

from leasehold._model import (
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
from leasehold.errors import StoreUnavailable, Unsupported
from leasehold.stores.etcd import doctor, inspecting, mutex
from leasehold.stores.etcd.cells import Cells
from leasehold.stores.etcd.connection.errors import Meaning, Refused
from leasehold.stores.etcd.connection.gateway import Gateway
from leasehold.stores.etcd.connection.settings import Settings
from leasehold.stores.etcd.http.base import Http
from leasehold.stores.etcd.keys import Json, Keys, deleted, only, put, removed, span, txn, unb64
from leasehold.stores.etcd.mutex import Verdict
from leasehold.stores.etcd.renewing import Renewals
from leasehold.stores.etcd.sessions import Sessions
from leasehold.stores.etcd.shared import Entering
from leasehold.stores.etcd.waiting import Mine, Watch

IDLE = 10
"""Leases after which a waiter asks again that need not: it is told, and the watchdog's renewals look after it."""

AGAIN = 0.05
"""Seconds after which a claim is asked again that found its own grave."""

CLOSE_WITHIN = 1.0
"""Seconds that the watch gets to end."""


class EtcdStore:
    """See `leasehold.store_api.Store` for what each method promises."""

    capabilities = Capabilities(
        shared=True,
        permits=True,
        lock_delay=False,
        shortest=1.0,
        tardy=1.0,
        crash_bound="within the lease, in whole seconds and at least the server's least one, + about 1 s",
    )

    def __init__(self, runtime: Runtime, settings: Settings, namespace: str, http: Http | None = None) -> None:
        """Make one; ``http`` has the connections, as to a model."""
        if runtime.flavor is Flavor.SIMULATED and http is None:
            raise Unsupported("a real etcd cannot be reached from the simulated runtime; use a memory: store there")
        self._runtime = runtime
        self._settings = settings
        self._namespace = namespace
        self._keys = Keys.of(settings, namespace)
        self._gateway = Gateway(runtime, settings, http)
        self._sessions = Sessions(runtime, self._gateway, self._keys)
        self._watch = Watch(runtime, self._gateway, self._keys)
        self._cells = Cells(runtime, self._gateway, self._keys)
        self._renewals = Renewals(runtime, self._gateway, self._sessions, self._watch, self._keys)
        self._mine: dict[str, Mine] = {}

    # --- the six -----------------------------------------------------------------------------------------------

    async def try_acquire(self, name: str, ticket: Ticket, *, join: bool, within: float) -> Granted | Wait:
        until = self._runtime.now() + within
        while True:
            mine = await self._seated(name, ticket, until)
            try:
                verdict = await self._ask(mine, join=join, until=until)
                if not await self._settled(mine, verdict, join=join, until=until):
                    self._forget(mine)
                    continue
                if verdict.token:
                    return self._granted(mine, verdict)
                if mine.unknown and not join and not mine.held:
                    await self._bury([mine], until)
                return self._waits(mine, verdict, join=join)
            except Refused as refused:
                if refused.meaning is not Meaning.LEASE:
                    raise refused.unavailable(self._settings.where) from None
                self._sessions.ended(mine.session)
                self._forget(mine)
            finally:
                mine.claiming = False

    async def release(self, name: str, ticket: Ticket, *, reason: ReleaseReason, within: float) -> bool:
        mine = self._mine.get(ticket.id)
        if mine is None:
            return await self._take_out(name, ticket.id, within)
        self._watch.stop(mine)
        mine.set()  # the client closes, and somebody may still wait
        took = [deleted(only(mine.key))]
        if ticket.terms.mode.kind is not Kind.MUTEX:
            took.append(deleted(only(mine.mark)))
        if mine.unknown:
            took.append(put(self._keys.grave(mine.entry), b"", mine.session.id))
        try:
            said = await self._gateway.call("/v3/kv/txn", txn([], took), within=within)
        except Refused as refused:
            if refused.meaning is not Meaning.LEASE:
                raise refused.unavailable(self._settings.where) from None
            self._sessions.ended(mine.session)  # and the key has ended with it
            said = {}
        self._forget(mine)
        if not mine.unknown:
            self._sessions.give_back(mine.session)
        return removed(said, 0) > 0

    async def renew(self, tickets: Sequence[tuple[str, Ticket]], *, within: float) -> Sequence[RenewalResult]:
        mine = [self._mine.get(ticket.id) for _, ticket in tickets]
        now = self._runtime.now()
        until = now + within
        asked = {one.ticket.id for one in mine if one is not None}
        others = [one for one in list(self._mine.values()) if now >= one.until and one.ticket.id not in asked]
        abandoned = [one for one in others if one.dooms()]
        results, left_behind = await self._renewals.renew(mine, abandoned, within)
        gone = [one for one, result in zip(mine, results, strict=True) if result is RenewalResult.GONE]
        left_behind |= set(
            await self._renewals.take_out([one for one in gone if one and one.held and one.unknown], until)
        )
        for one in [*gone, *abandoned]:
            if one is not None and (one.held or one in abandoned) and one not in left_behind:
                self._forget(one)
        return results

    async def wait(self, name: str, ticket: Ticket, mark: object, *, timeout: float) -> Granted | None:
        mine = self._mine.get(ticket.id)
        if mine is None or not isinstance(mark, int):
            return None
        if not mine.news and mine.blockers and not self._watch.listen(mine, mark):
            return None  # the watch began after that: ask once more
        if not mine.news:
            await mine.signal.wait(timeout)
        mine.signal.clear()
        mine.news = False
        if self._watch.denied is not None and mine.blockers:
            self._watch.listen(mine, mark)  # raises what is the matter
        return None

    async def inspect(self, prefix: str, *, exact: bool = False) -> list[View]:
        return await inspecting.look(self._runtime, self._gateway, self._keys, prefix, exact=exact)

    async def compare_and_set(self, name: str, change: Change) -> Cell:
        return await self._cells.change(self._keys.cell(name), change)

    # --- the rest ----------------------------------------------------------------------------------------------

    async def diagnose(self) -> list[Finding]:
        return await doctor.diagnose(self._runtime, self._gateway, self._settings, self._keys)

    async def close(self) -> None:
        await self._watch.close(CLOSE_WITHIN)
        await self._sessions.revoke_all()
        await self._gateway.close()

    def after_fork(self) -> None:
        self._gateway.after_fork()
        self._sessions.forget()
        self._watch.forget()
        self._mine = {}

    def place_of(self, ticket: str) -> tuple[str, Kind] | None:
        """Return the key under which a ticket of this client stands, and as what: for guards."""
        mine = self._mine.get(ticket)
        return None if mine is None else (mine.key, mine.ticket.terms.mode.kind)

    async def send(self, path: str, body: Json, *, within: float) -> Json:
        """Send a request of a guard's."""
        try:
            return await self._gateway.call(path, body, within=within)
        except Refused as refused:
            raise refused.unavailable(self._settings.where) from None

    # --- claims ------------------------------------------------------------------------------------------------

    async def _seated(self, name: str, ticket: Ticket, until: float) -> Mine:
        """Return the ticket's place under a session that lives and was renewed lately, with a claim under way there."""
        mine, alone = self._mine.get(ticket.id), ticket.terms.fixed
        if mine is not None:
            if await self._usable(mine, until):
                return mine
            alone = alone or mine.doomed  # a deletion that comes late must not find the new key
            self._forget(mine)
        session, kept = await (self._sessions.own if alone else self._sessions.shared)(ticket.terms.lease, until)
        mine = Mine(self._runtime, name, ticket, session, kept, self._keys)
        self._mine[ticket.id] = mine
        return mine

    async def _usable(self, mine: Mine, until: float) -> bool:
        """Begin a claim at a place, if its session lives and nobody takes its key out; else see that it is out.

        Raises:
            StoreUnavailable: that is not known.

        """
        mine.claiming, usable = True, False
        try:
            if not mine.doomed:
                usable = await self._fresh(mine, until)
            else:
                await self._bury([mine], until)
        finally:
            mine.claiming = usable
        return usable

    async def _bury(self, those: Sequence[Mine], until: float) -> None:
        """See that keys are out, and that no claim that may yet arrive puts them there again.

        Raises:
            StoreUnavailable: that is not known.

        """
        for mine, reason in (await self._renewals.take_out(those, until)).items():
            what = f"the key of an older claim of {mine.name!r} may still be there: {reason}"
            raise StoreUnavailable(what, unknown=True) from reason

    async def _fresh(self, mine: Mine, until: float) -> bool:
        renew = self._sessions.fresh if mine.session.shared else self._sessions.renew
        kept = await renew(mine.session, until)
        if kept is not None:
            mine.kept = kept
        return kept is not None

    async def _settled(self, mine: Mine, verdict: Verdict, *, join: bool, until: float) -> bool:
        """See that the lease counts under which a ticket now holds or waits; return False if it has ended."""
        if not verdict.token and not join and not mine.held:
            return True  # no key of it is there
        return await self._sessions.settle(mine.session, mine.kept, until)

    async def _ask(self, mine: Mine, *, join: bool, until: float) -> Verdict:
        now = self._runtime.now()
        if now >= until:
            raise StoreUnavailable("no time was left to claim", unknown=False)
        try:
            if mine.ticket.terms.mode.kind is Kind.MUTEX:
                return await mutex.try_acquire(self._gateway, self._keys, mine, join=join, until=until, now=now)
            return await Entering(self._runtime, self._gateway, self._keys, mine, until).try_acquire(join=join)
        except StoreUnavailable as error:
            mine.unknown = mine.unknown or error.unknown
            raise
        except Refused:
            raise
        except BaseException:
            mine.unknown = True  # cancelled: it may arrive yet
            raise

    def _granted(self, mine: Mine, verdict: Verdict) -> Granted:
        self._watch.stop(mine)
        mine.held = True
        mine.until = mine.session.until
        return Granted(verdict.token, mine.session.confirmed, mine.session.length)

    def _waits(self, mine: Mine, verdict: Verdict, *, join: bool) -> Wait:
        mine.until = mine.session.until
        held_by = None if verdict.held_by is None else verdict.held_by.ticket.terms.owner
        if not join and not mine.held:
            self._forget(mine)
            if not mine.unknown:
                self._sessions.give_back(mine.session)
        elif verdict.blockers:
            self._watch.wait_for(mine, verdict.blockers, verdict.revision)
        again = IDLE * mine.session.length if verdict.blockers else AGAIN
        return Wait(verdict.revision, again, held_by)

    async def _take_out(self, name: str, ticket: str, within: float) -> bool:
        """Remove a ticket that is not ours: a break, or one of another program."""
        until = self._runtime.now() + within
        line = span(self._keys.queue(name))
        said = await self._gateway.call("/v3/kv/range", {**line, "keys_only": True}, within=within)
        for kv in said.get("kvs", []):
            key = unb64(kv["key"]).decode("utf-8", "replace")
            entry = key.rpartition("/")[2]
            if ticket in (entry, entry.partition("-")[2]):
                left = max(until - self._runtime.now(), 0.001)
                body = txn([], [deleted(only(key))])
                return removed(await self._gateway.call("/v3/kv/txn", body, within=left), 0) > 0
        return False

    def _forget(self, mine: Mine) -> None:
        self._watch.stop(mine)
        if self._mine.get(mine.ticket.id) is mine:
            del self._mine[mine.ticket.id]

    def __repr__(self) -> str:
        return f"<EtcdStore {self._settings.where} namespace={self._namespace!r}>"
