"""One primary of PostgreSQL: lease rows, and advisory locks."""

from __future__ import annotations

from leasehold.stores.postgres.connection.transaction import STALL
from leasehold_lab.runtimes.harnesses import SimulatedHarness
from models.scenario import OF_CLIENTS, Kind, Menu
from models.sql.postgres import PostgresModel
from models.sql.postgres_transport import SimulatedPostgres
from models.system import Spoilt
from models.systems.redis import LOCKS
from models.systems.rows import RowSystem, SessionSystem


class PostgresSystem(RowSystem):
    """The word is kept while no commit is lost and the clock is not set."""

    name = "postgres"
    menu = Menu(LOCKS, (*OF_CLIENTS, Kind.DEAF, Kind.RESTART, Kind.ROLLBACK), (Kind.FAILOVER, Kind.FORWARD, Kind.BACK))
    passes_over = True
    stall = STALL

    def __init__(self, harness: SimulatedHarness, rate: float, spoilt: Spoilt) -> None:
        super().__init__(harness, rate, spoilt)
        self.server = server = PostgresModel(harness.scheduler, rate=rate)
        server.plain = harness.seed % 4 != 3
        self.hosts = [server]
        self.opener = SimulatedPostgres(server)


class PostgresSessionSystem(SessionSystem):
    """Advisory locks of sessions."""

    name = "postgres-session"

    def __init__(self, harness: SimulatedHarness, rate: float, spoilt: Spoilt) -> None:
        super().__init__(harness, rate, spoilt)
        self.server = server = PostgresModel(harness.scheduler, rate=rate)
        self.hosts = [server]
        self.opener = SimulatedPostgres(server, session=True)
