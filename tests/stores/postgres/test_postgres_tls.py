"""PostgreSQL by TLS: the server is known by a certificate of one's own authority, or the connection is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from leasehold import StoreUnavailable
from leasehold.stores.postgres.statements import script
from leasehold_lab.runtimes.harnesses import Harness
from leasehold_lab.servers import PostgresServer
from leasehold_lab.servers.certificates import Certificates
from support.flavors import both

SECRET = "pässword'%\\"


@pytest.fixture(scope="module")
def server(outlive: set[int]) -> Iterator[PostgresServer]:
    with PostgresServer(password=SECRET, tls=True) as server:
        outlive.add(server.pid)
        server.execute(script())
        yield server


@both
@pytest.mark.parametrize("mode", ["", "&mode=session"], ids=["rows", "session"])
def test_a_certificate_of_a_private_authority_is_verified(
    server: PostgresServer, harness: Harness, namespace: str, mode: str
) -> None:
    assert server.certificates is not None
    url = f"{server.url}?sslmode=verify-full&sslrootcert={server.certificates.authority}{mode}"

    async def body(harness: Harness) -> None:
        holder, waiter = (harness.client(url, namespace=namespace) for _ in range(2))
        hold = await holder.lock("x").acquire(timeout=5)
        job = harness.spawn(lambda: waiter.lock("x").acquire(timeout=20))
        until = harness.now() + 10
        while not (await holder.inspect("x")).waiters:
            assert harness.now() < until
            await harness.sleep(0.02)
        await hold.release()
        assert await (await job.result()).release()
        found = {one.subject: one.found for one in await holder.diagnose()}
        assert found["encryption"] == "TLS"
        clear = "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE NOT ssl AND client_port > 0"
        assert server.query(clear)[0][0] == 0

    harness.run(body)


@both
def test_another_server_is_refused_and_never_gets_the_password(
    server: PostgresServer, harness: Harness, tmp_path: Path
) -> None:
    assert server.certificates is not None
    other = Certificates.make(tmp_path).authority
    mine = server.certificates.authority
    named = server.url.replace("127.0.0.1", "localhost.localdomain") + "&hostaddr=127.0.0.1"

    async def body(harness: Harness) -> None:
        for url, words in (
            (f"{server.url}?sslmode=verify-full&sslrootcert={other}", "sslrootcert=FILE"),
            (f"{server.url}?sslmode=verify-ca&sslrootcert={tmp_path}/none.pem", "no such file|does not exist"),
            (named.replace("&", f"?sslmode=verify-full&sslrootcert={mine}&"), "does not match host name"),
            (f"{server.url}?sslmode=disable", "no encryption|hba"),
        ):
            for mode in ("", "&mode=session"):
                with pytest.raises(StoreUnavailable, match=words) as caught:
                    await harness.client(url + mode).lock("x").acquire(timeout=2)
                assert SECRET not in str(caught.value)
                assert "p%C3%A4ssword" not in str(caught.value)

    harness.run(body)
