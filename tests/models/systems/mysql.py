"""One primary of MySQL or MariaDB: lease rows, and its own locks."""

from __future__ import annotations

from dataclasses import replace

from leasehold.stores.mysql.connection.transport import GRACE
from leasehold_lab.runtimes.harnesses import SimulatedHarness
from models.scenario import OF_CLIENTS, Kind, Menu
from models.sql.mysql import MySQLModel
from models.sql.mysql_transport import SimulatedMySQL
from models.system import Spoilt
from models.systems.redis import LOCKS
from models.systems.rows import OF_SESSIONS, RowSystem, SessionSystem


class MySQLSystem(RowSystem):
    """Promises hold while no commit is lost and the clock is not set. Waiters poll: there are no messages."""

    name = "mysql"
    menu = Menu(LOCKS, (*OF_CLIENTS, Kind.RESTART, Kind.ROLLBACK), (Kind.FAILOVER, Kind.FORWARD, Kind.BACK))
    stall = 1.0 + 1.0 + GRACE
    """Of a transaction that may take a second."""

    def __init__(self, harness: SimulatedHarness, rate: float, spoilt: Spoilt) -> None:
        super().__init__(harness, rate, spoilt)
        self.server = server = MySQLModel(harness.scheduler, rate=rate)
        server.plain = harness.seed % 4 != 3
        self.hosts = [server]
        self.opener = SimulatedMySQL(server)


class MySQLSessionSystem(SessionSystem):
    """Its own locks, GET_LOCK, which know no order of arrival that a waiter could rely on."""

    name = "mysql-session"
    menu = replace(OF_SESSIONS, what=("lock", "fixed"))

    def __init__(self, harness: SimulatedHarness, rate: float, spoilt: Spoilt) -> None:
        super().__init__(harness, rate, spoilt)
        self.server = server = MySQLModel(harness.scheduler, rate=rate)
        self.hosts = [server]
        self.opener = SimulatedMySQL(server, session=True)
