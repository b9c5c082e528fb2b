"""Members of a Hazelcast cluster, from the jar that Maven brought for the peer. Each is a Java process."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from leasehold_lab.servers.base import Server

MAIN = "com.hazelcast.core.server.HazelcastMemberStarter"

TTL, INTERVAL = 6, 1
"""Seconds of a CP session's time to live, and between heartbeats."""

CALL_TIMEOUT = 10
"""Seconds that a request may take on the members, unless it waits for a lock."""

READY_WITHIN = 90.0
"""Seconds until all members have found each other."""

CONFIG = """\
<hazelcast xmlns="http://www.hazelcast.com/schema/config">
  <cluster-name>{cluster}</cluster-name>
  <properties>
    <property name="hazelcast.phone.home.enabled">false</property>
    <property name="hazelcast.wait.seconds.before.join">0</property>
    <property name="hazelcast.heartbeat.interval.seconds">1</property>
    <property name="hazelcast.max.no.heartbeat.seconds">10</property>
    <property name="hazelcast.operation.call.timeout.millis">{call_timeout}</property>
  </properties>
  <network>
    <port auto-increment="false">{port}</port>
    <interfaces enabled="true"><interface>127.0.0.1</interface></interfaces>
    <join>
      <auto-detection enabled="false"/>
      <multicast enabled="false"/>
      <tcp-ip enabled="true"><member-list>{members}</member-list></tcp-ip>
    </join>
  </network>
  <cp-subsystem>
    <cp-member-count>{cp}</cp-member-count>
    <session-time-to-live-seconds>{ttl}</session-time-to-live-seconds>
    <session-heartbeat-interval-seconds>{interval}</session-heartbeat-interval-seconds>
    <raft-algorithm>
      <leader-election-timeout-in-millis>500</leader-election-timeout-in-millis>
      <leader-heartbeat-period-in-millis>500</leader-heartbeat-period-in-millis>
      <max-missed-leader-heartbeat-count>3</max-missed-leader-heartbeat-count>
    </raft-algorithm>
  </cp-subsystem>
</hazelcast>
"""


class HazelcastMember(Server):
    """One member.

    Args:
        java: the command of the peer in Java, without its main class.
        cluster: the name of the cluster.
    """

    programs = ("java",)
    version = "hazelcast"

    def __init__(self, java: Sequence[str], cluster: str) -> None:
        super().__init__()
        self._java = java
        self.cluster = cluster
        self.cp = 0
        self.ports: list[int] = [self.port]

    def _arguments(self) -> Sequence[str]:
        members = "".join(f"<member>127.0.0.1:{port}</member>" for port in self.ports)
        text = CONFIG.format(
            cluster=self.cluster,
            port=self.port,
            members=members,
            cp=self.cp,
            ttl=TTL,
            interval=INTERVAL,
            call_timeout=CALL_TIMEOUT * 1000,
        )
        path = self.folder / "hazelcast.xml"
        path.write_text(text)
        return [*self._java[1:-2], "-Xmx160m", f"-Dhazelcast.config={path}", *self._java[-2:], MAIN]

    def _ready(self) -> bool:
        return "is STARTED" in self.log()


class Cluster:
    """Some members that have found each other."""

    def __init__(self, members: Sequence[HazelcastMember]) -> None:
        self.members = members
        hosts = ",".join(f"127.0.0.1:{member.port}" for member in members)
        self.url = f"hazelcast://{hosts}/{members[0].cluster}"


@contextmanager
def cluster(java: Sequence[str], *, members: int = 3, cp: int = 3) -> Iterator[Cluster]:
    """Start members, ``cp`` of them in the CP subsystem; all are ended."""
    name = f"test-{secrets.token_hex(4)}"
    with ExitStack() as started:
        made = [HazelcastMember(java, name) for _ in range(members)]
        for member in made:
            member.cp = cp
            member.ports = [each.port for each in made]
            started.enter_context(member)
        until = time.monotonic() + READY_WITHIN
        wanted = "CP Subsystem is initialized with" if cp else f"size:{members},"
        while not all(wanted in member.log() for member in made):
            assert time.monotonic() < until, made[0].log()[-3000:]
            time.sleep(0.1)
        yield Cluster(made)
