"""A model of ZooKeeper: an ensemble with one history, members that lag behind it, sessions, ephemeral nodes, watches.

Theory of operation
-------------------
The leader carries out writes one after the other and gives each a number. A member applies them in the same order, but
later; it answers reads from what it has applied, so they can be stale. Who writes through a member, or asks it to
``sync``, waits until it has applied all up to that point. Watches fire when the member with the client's connection
applies the change, once, and before any answer that shows it. The nodes, and what a write does to them, are in
``zookeeper_tree.py``.

A session is the leader's: it ends when nothing was heard of it for its timeout, counted in whole ticks. A new leader
counts all sessions anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from leasehold_lab.runtimes.virtual import Scheduler
from models.net import Connection, Host, ServerClock
from models.zookeeper.tree import Change, Failed, Tree, Write

TICK = 0.5
"""Seconds between two looks at the sessions."""

LAG = 0.03
"""Seconds by which a member applies later than the leader, at most."""

CONTAINER = 4


@dataclass(slots=True)
class Session:
    """A session, as the leader knows it."""

    timeout: float
    ends: float
    member: str = ""


class Ensemble:
    """The leader's part: all writes, and the sessions."""

    def __init__(self, scheduler: Scheduler, names: Sequence[str], *, rate: float = 1.0) -> None:
        self.scheduler = scheduler
        self.clock = ServerClock(scheduler, rate=rate, name="leader")
        self.tree = Tree()
        self.log: list[Write] = []
        self.sessions: dict[int, Session] = {}
        self.no_leader_until = 0.0
        self._numbers = 0
        self._dirty = False
        self.members = [Member(scheduler, self, name) for name in names]

    @property
    def now(self) -> float:
        """Read the leader's clock, in seconds."""
        return self.clock.now_us() / 1e6

    @property
    def is_leaderless(self) -> bool:
        """Whether no client can write, or have a session."""
        return self.scheduler.time < self.no_leader_until

    # --- sessions ----------------------------------------------------------------------------------------------

    def begin(self, timeout: float) -> int:
        """Begin a session; return its id."""
        self._numbers += 1
        number = 0x1000_0000 + self._numbers
        self.sessions[number] = Session(timeout, 0.0)
        self.touch(number)
        self._look(number)
        return number

    def touch(self, number: int) -> bool:
        """Take note that a session was heard of; return whether it lives."""
        session = self.sessions.get(number)
        if session is None:
            return False
        session.ends = ((self.now + session.timeout) // TICK + 1) * TICK
        return True

    def end(self, number: int) -> None:
        """End a session: its nodes go."""
        if self.sessions.pop(number, None) is not None:
            gone = [path for path, node in self.tree.nodes.items() if node.owner == number]
            self.commit([Change("delete", path) for path in gone])

    def moves(self, number: int) -> None:
        """Take note that a session has a new line: nothing that arrives on an earlier one is carried out."""
        for member in self.members:
            for line in [line for line, session in member._sessions.items() if session == number]:
                del member._sessions[line]

    def elect(self, until: float) -> None:
        """Be without a leader for a while; the next one counts all sessions anew."""
        self.no_leader_until = max(self.no_leader_until, until)
        wait = until - self.scheduler.time
        for session in self.sessions.values():
            session.ends = max(session.ends, self.now + wait + session.timeout + TICK)
        for member in self.members:
            member.hang_up(arrives=self.scheduler.random.random() < 0.5)

    def sweep(self) -> None:
        """Remove containers that have had children and have none."""
        for path, node in list(self.tree.nodes.items()):
            if node.container and node.made and not node.children:
                self.commit([Change("delete", path)])

    def _look(self, number: int) -> None:
        session = self.sessions.get(number)
        if session is None:
            return
        left = session.ends - self.now
        if left <= 0 and not self.is_leaderless:
            self.clock.note("ends a session")
            self.end(number)
            return
        when = self.scheduler.time + max(left, TICK) * 1.01
        self.scheduler.at(when, self.clock.machine, lambda: self._look(number))

    # --- writes ------------------------------------------------------------------------------------------------

    def commit(self, changes: Sequence[Change]) -> Write:
        """Carry out changes that fit, as one write."""
        write = Write(self.tree.zxid + 1, self._now_ms(), changes)
        self.tree.apply(write)
        self.log.append(write)
        for member in self.members:
            lag = LAG * self.scheduler.random.random()
            at = len(self.log)
            self.scheduler.at(self.scheduler.time + lag, member.machine, lambda m=member, at=at: m.catch_up(at))  # type: ignore[misc]
        return write

    def write(self, forms: Sequence[Any], owner: int) -> list[Any]:
        """Carry out requests of kazoo's as one write; return for each the path made, what is told of a node, or true.

        Raises:
            Failed: one does not fit.

        """
        changes, made = list[Change](), list[Any]()
        draft = self.tree.draft([form.path for form in forms])
        for form in forms:
            some = self._changes(draft, form, owner)
            draft.apply(Write(self.tree.zxid + 1, self._now_ms(), some))
            changes += some
            made.append(_made(draft, some))
        if changes:
            self.commit(changes)
        return made

    def _now_ms(self) -> int:
        return self.clock.now_us() // 1000

    def _changes(self, tree: Tree, form: Any, owner: int) -> Sequence[Change]:
        match type(form).__name__:
            case "Create" | "Create2" | "_Container":
                parent = form.path.rpartition("/")[0] or "/"
                above = tree.find(parent)
                if above.owner:
                    raise Failed("NoChildrenForEphemeralsError")
                container, path = form.flags == CONTAINER, form.path
                if form.flags & 2 and not container:
                    path = f"{path}{above.made:010d}"
                if path.rpartition("/")[2] in above.children:
                    raise Failed("NodeExistsError")
                holder = owner if form.flags & 1 and not container else 0
                return [Change("create", path, form.data, holder, container)]
            case "Delete":
                node = tree.find(form.path)
                if form.version not in (-1, node.version):
                    raise Failed("BadVersionError")
                if node.children:
                    raise Failed("NotEmptyError")
                return [Change("delete", form.path)]
            case "SetData":
                if form.version not in (-1, tree.find(form.path).version):
                    raise Failed("BadVersionError")
                return [Change("set", form.path, form.data)]
            case "CheckVersion":
                if form.version not in (-1, tree.find(form.path).version):
                    raise Failed("BadVersionError")
                return []
        raise NotImplementedError(f"the model of ZooKeeper has no {type(form).__name__}")


@dataclass(frozen=True, slots=True)
class Hello:
    """The first of a connection: the session, 0 for a new one, and the timeout asked for."""

    session: int
    timeout: float


class Member(Host):
    """One member. A request is one of kazoo's, or `Hello`, or ``ping`` or ``close``; an answer is what it reads."""

    def __init__(self, scheduler: Scheduler, ensemble: Ensemble, name: str) -> None:
        super().__init__(scheduler, name=name)
        self.ensemble = ensemble
        self.tree = Tree()
        self._applied = 0
        self._sessions: dict[int, int] = {}  # by the number of the line
        self._data: dict[str, dict[int, Connection]] = {}
        self._children: dict[str, dict[int, Connection]] = {}

    def over(self, line: Connection) -> None:
        """Take note that a line has ended, and with it its watches.

        What is under way on it still arrives, unless its session has moved to another line by then.
        """
        super().over(line)
        for watches in (*self._data.values(), *self._children.values()):
            watches.pop(line.number, None)

    def catch_up(self, at: int) -> None:
        """Apply all writes up to that one."""
        while self._applied < at:
            write = self.ensemble.log[self._applied]
            self._applied += 1
            self.tree.apply(write)
            for change in write.changes:
                self._fire(change)

    def _fire(self, change: Change) -> None:
        """Tell the watches of a change: one word for each connection, whatever it watches of a node that is deleted."""
        parent = change.path.rpartition("/")[0] or "/"
        lines = self._data.pop(change.path, {})
        if change.kind == "delete":
            lines = lines | self._children.pop(change.path, {})
        self._tell(lines, "deleted" if change.kind == "delete" else "data", change.path)
        if change.kind != "set":
            self._tell(self._children.pop(parent, {}), "children", parent)

    def _tell(self, lines: dict[int, Connection], what: str, path: str) -> None:
        for line in lines.values():
            self.counts.messages += 1
            if line.open:
                line.tell((what, path), True)

    # --- requests ----------------------------------------------------------------------------------------------

    def receive(self, line: Connection, request: Any) -> None:
        """Carry out a request."""
        self.counts.commands += 1
        if self.ensemble.is_leaderless:
            line.end()
            return
        if isinstance(request, Hello):
            self._greet(line, request)
            return
        session = self._sessions.get(line.number, 0)
        if not self.ensemble.touch(session):
            line.end()
            return
        if request == "close":
            self.ensemble.end(session)
        try:
            answer = None if isinstance(request, str) else self._answer(line, request, session)
        except Failed as error:
            answer = error
        self.note(f"answers {line.client.name} {_named(request)} {answer if isinstance(answer, Failed) else ''}")
        if line.open:
            line.tell(answer)

    def _greet(self, line: Connection, hello: Hello) -> None:
        session = hello.session
        if session and not self.ensemble.touch(session):
            session = 0
        elif not session:
            session = self.ensemble.begin(hello.timeout)
        if line.open:
            self.ensemble.moves(session)
            self._sessions[line.number] = session
            line.tell((session, hello.timeout))

    def _answer(self, line: Connection, form: Any, session: int) -> Any:
        match kind := type(form).__name__:
            case "Sync":
                self.catch_up(len(self.ensemble.log))
                return form.path
            case "GetData":
                stat = self.tree.stat(form.path)
                self._watch(self._data, line, form)
                return self.tree.find(form.path).data, stat
            case "Exists":
                self._watch(self._data, line, form)
                return self.tree.stat(form.path)
            case "GetChildren" | "GetChildren2":
                stat, children = self.tree.stat(form.path), list(self.tree.find(form.path).children)
                self._watch(self._children, line, form)
                return children if kind == "GetChildren" else (children, stat)
        try:
            if kind == "Transaction":
                made = self.ensemble.write(form.operations, session)
                self.catch_up(len(self.ensemble.log))
                return made
            (made,) = self.ensemble.write([form], session)
        finally:
            self.catch_up(len(self.ensemble.log))
        match kind:
            case "Create2" | "_Container":
                return made, self.tree.stat(made)
            case "SetData":
                return self.tree.stat(form.path)
        return True

    def _watch(self, watches: dict[str, dict[int, Connection]], line: Connection, form: Any) -> None:
        if form.watcher is not None and line.open:
            watches.setdefault(form.path, {})[line.number] = line


def _made(tree: Tree, changes: Sequence[Change]) -> Any:
    """Return what a part of a transaction is answered with."""
    if not changes or changes[0].kind == "delete":
        return True
    return changes[0].path if changes[0].kind == "create" else tree.stat(changes[0].path)


def _named(request: Any) -> str:
    return request if isinstance(request, str) else f"{type(request).__name__}"
