"""One primary of MySQL or MariaDB: lease rows, and its own locks."""

from __future__ import annotations

from dataclasses import replace

from leasehold.testing.models.mysql import MySQLModel
from leasehold.testing.models.mysql_wire import SimulatedMySQL
from leasehold.testing.models.scenario import OF_CLIENTS, Kind, Menu
from leasehold.testing.models.system import Spoilt
from leasehold.testing.models.systems.redis import LOCKS
from leasehold.testing.models.systems.rows import OF_SESSIONS, RowSystem, SessionSystem
from leasehold.testing.worlds import SimulatedWorld
from leasehold.wires.mysql.wire import GRACE


class MySQLSystem(RowSystem):
    """The word is kept while no commit is lost and the clock is not set. Who waits looks: there are no messages."""

    name = "mysql"
    menu = Menu(LOCKS, (*OF_CLIENTS, Kind.RESTART, Kind.ROLLBACK), (Kind.FAILOVER, Kind.FORWARD, Kind.BACK))
    stall = 1.0 + 1.0 + GRACE
    """Of a transaction that may take a second."""

    def __init__(self, world: SimulatedWorld, rate: float, spoilt: Spoilt) -> None:
        super().__init__(world, rate, spoilt)
        self.server = server = MySQLModel(world.scheduler, rate=rate)
        self.hosts = [server]
        self.opener = SimulatedMySQL(server)


class MySQLSessionSystem(SessionSystem):
    """Its own locks, GET_LOCK, which know no order of arrival that a waiter could rely on."""

    name = "mysql-session"
    menu = replace(OF_SESSIONS, what=("lock", "fixed"))

    def __init__(self, world: SimulatedWorld, rate: float, spoilt: Spoilt) -> None:
        super().__init__(world, rate, spoilt)
        self.server = server = MySQLModel(world.scheduler, rate=rate)
        self.hosts = [server]
        self.opener = SimulatedMySQL(server, session=True)
