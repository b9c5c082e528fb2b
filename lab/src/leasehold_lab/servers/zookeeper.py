"""ZooKeeper servers for tests: one alone, and an ensemble. Each is a Java process with a small heap."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import TracebackType
from typing import Any, Self

from leasehold_lab.servers.base import MissingServer, Server, find_files, free_port
from leasehold_lab.servers.certificates import Certificates

JAR = "usr/share/java/zookeeper.jar"
"""Where Debian's package has the server; its manifest names the libraries beside it."""

ALONGSIDE = ("zookeeper-jute.jar", "slf4j-nop.jar", "netty-codec.jar", "slf4j-api.jar", "log4j-1.2.jar")
"""Libraries that go first: of its own release, whatever is installed; and those that its manifest does not name, to say
nothing, for TLS, and for releases before 3.5."""

MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"

JVM = (
    "-Xmx96m",
    "-Xshare:auto",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Dzookeeper.admin.enableServer=false",
    "-Dzookeeper.forceSync=no",
    "-Dzookeeper.DigestAuthenticationProvider.superDigest=super:xQJmxLMiHGwaqBvst5y6rkB6HQs=",
    "-Dzookeeper.maxCnxns=0",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)
"""Quick to start, light to run: nothing here is timed. The super user is ``super`` with the password ``admin``."""

ANSWER_WITHIN = 5.0
"""Seconds that a server may take to answer a question about itself."""

STARTING_WITHIN = 0.5
"""The same while it starts: a question that comes too early is never answered."""

TICK = 0.5
"""Seconds of a tick: session timeouts may be from two ticks up, and an expiry is rounded up to the next one."""


class ZooKeeperServer(Server):
    """A server alone, or one member of a `ZooKeeperEnsemble`.

    Args:
        tick: seconds; the shortest session timeout is two ticks.
        config: further settings of ``zoo.cfg``, by name.
        properties: further system properties, by name.
        jaas: the text of a JAAS file, for SASL.
        tls: listen on `secure_port` as well, and speak TLS there; `certificates` has the files.
        binary: the program; without it ``java``.

    """

    programs = ("java",)
    package = "zookeeper"

    def __init__(
        self,
        *,
        tick: float = TICK,
        config: Mapping[str, str] | None = None,
        properties: Mapping[str, str] | None = None,
        jaas: str | None = None,
        tls: bool = False,
        binary: str | None = None,
    ) -> None:
        super().__init__(binary)
        jar = next(find_files(JAR), None)
        if jar is None:
            raise MissingServer(f"no /{JAR}; install it, on Debian with: apt-get install zookeeper")
        self.jar = jar[0]
        self.member = 0
        self._properties = {**(properties or {})}
        if jaas is not None:
            (self.folder / "jaas.conf").write_text(jaas)
            self._properties["java.security.auth.login.config"] = str(self.folder / "jaas.conf")
        self.certificates = Certificates.make(self.folder) if tls else None
        self.secure_port = free_port() if tls else 0
        self.config = {
            "tickTime": str(int(tick * 1000)),
            "dataDir": str(self.folder / "data"),
            "clientPort": str(self.port),
            "clientPortAddress": "127.0.0.1",
            "maxClientCnxns": "0",
            "maxSessionTimeout": "120000",
            "4lw.commands.whitelist": "*",
            "admin.enableServer": "false",
            **(self._secure(self.certificates) if self.certificates else {}),
            **(config or {}),
        }

    def _secure(self, files: Certificates) -> dict[str, str]:
        both = self.folder / "keystore.pem"
        both.write_text(files.server.read_text() + files.server_key.read_text())
        return {
            "secureClientPort": str(self.secure_port),
            "secureClientPortAddress": "127.0.0.1",
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "ssl.keyStore.location": str(both),
            "ssl.trustStore.location": str(files.authority),
            "ssl.clientAuth": "want",
        }

    @property
    def address(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """The URL without credentials."""
        return f"zookeeper://{self.address}"

    @property
    def version(self) -> str:
        """The program and its version, from the name of its file, for example ``zookeeper 3.8.0``."""
        for path in self.jar.parent.glob("zookeeper-[0-9]*.jar"):
            return f"zookeeper {path.stem.partition('-')[2]}"
        return "zookeeper"

    @contextmanager
    def connect(self, **options: Any) -> Generator[Any]:
        """Connect by a client of kazoo, with these options, and end its session in the end."""
        client = import_module("kazoo.client").KazooClient(self.address, **options)
        client.start()
        try:
            yield client
        finally:
            client.stop()
            client.close()

    def end_session(self, session: Any) -> None:
        """End the session that kazoo calls so (``client_id``), as when its time has run out."""
        with self.connect(client_id=session):
            pass  # a client that leaves a session ends it for all its clients

    def ask(self, words: str, within: float = ANSWER_WITHIN) -> str:
        """Send one of the four-letter commands and return the answer; `OSError` if there is none in so many seconds."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=within) as link:
            link.sendall(words.encode())
            parts: list[bytes] = []
            while part := link.recv(1 << 16):
                parts.append(part)
        return b"".join(parts).decode(errors="replace")

    def monitored(self) -> dict[str, str]:
        """Return what the server counts about itself (``mntr``), by name."""
        return dict(line.split("\t", 1) for line in self.ask("mntr").splitlines() if "\t" in line)

    @property
    def role(self) -> str:
        """``standalone``, ``leader``, ``follower``; empty while it is none or does not answer."""
        return self._role(ANSWER_WITHIN)

    def _role(self, within: float) -> str:
        try:
            lines = self.ask("srvr", within).splitlines()
        except OSError:
            return ""
        return next((line.partition(": ")[2] for line in lines if line.startswith("Mode: ")), "")

    def stop(self) -> None:
        """End the server and remove its files."""
        self.kill()  # its data are not kept, so there is no need for a clean shutdown
        super().stop()

    def _arguments(self) -> Sequence[str]:
        (self.folder / "data").mkdir(exist_ok=True)
        if self.member:
            (self.folder / "data" / "myid").write_text(str(self.member))
        path = self.folder / "zoo.cfg"
        path.write_text("".join(f"{key}={value}\n" for key, value in self.config.items()))
        properties = [f"-D{key}={value}" for key, value in self._properties.items()]
        classes = os.pathsep.join(map(str, (*(self.jar.parent / name for name in ALONGSIDE), self.jar)))
        return [*JVM, *properties, "-cp", classes, MAIN, str(path)]

    def _ready(self) -> bool:
        if self.member:  # it serves only with a quorum, which its ensemble waits for
            with socket.create_connection(("127.0.0.1", self.port), timeout=ANSWER_WITHIN):
                return True
        return self._role(STARTING_WITHIN) != ""


Between = Callable[[int, int, int], int]
"""From a member's number, another's, and the other's port to the port that the first uses for it."""


class ZooKeeperEnsemble:
    """Several members that elect a leader. Their servers can be killed, paused and started one by one.

    Args:
        size: how many.
        tick: seconds.
        between: the port by which a member, by its number from 1, reaches the leader's port of another; without it that
            port itself. A `FaultProxy` there can cut members off from each other.

    """

    def __init__(self, size: int = 3, *, tick: float = TICK, between: Between | None = None) -> None:
        common = {"initLimit": "20", "syncLimit": "4"}
        self.members = [ZooKeeperServer(tick=tick, config=common) for _ in range(size)]
        ports = {number: (free_port(), free_port()) for number in range(1, size + 1)}
        for number, member in enumerate(self.members, 1):
            member.member = number
            for other, peer in enumerate(self.members, 1):
                leading, electing = ports[other]
                if between is not None and other != number:
                    leading = between(number, other, leading)
                where = f"127.0.0.1:{leading}:{electing}:participant;127.0.0.1:{peer.port}"
                member.config[f"server.{other}"] = where
            for key in ("clientPort", "clientPortAddress"):
                del member.config[key]

    @property
    def url(self) -> str:
        """The URL that names all members."""
        return "zookeeper://" + ",".join(member.address for member in self.members)

    def start(self) -> Self:
        """Start all and wait until one leads."""
        for member in self.members:
            member.start()
        self.wait()
        return self

    def stop(self) -> None:
        """End all and remove their files."""
        for member in self.members:
            member.stop()

    def leader(self) -> ZooKeeperServer | None:
        """Return the member that leads now, None if none does."""
        return next((member for member in self.members if member.running and member.role == "leader"), None)

    def followers(self) -> list[ZooKeeperServer]:
        """Return the members that follow now."""
        return [member for member in self.members if member.running and member.role == "follower"]

    def wait(self, serving: int | None = None, within: float = 30.0) -> ZooKeeperServer:
        """Wait until so many members serve (all by default), one of them as the leader, and return that one."""
        wanted, until = len(self.members) if serving is None else serving, time.monotonic() + within
        while time.monotonic() < until:
            leader = self.leader()
            if leader is not None and 1 + len(self.followers()) >= wanted:
                return leader
            time.sleep(0.05)
        logs = "\n".join(member.log()[-500:] for member in self.members)
        raise RuntimeError(f"the ensemble has no {wanted} members that serve; their logs end:\n{logs}")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
