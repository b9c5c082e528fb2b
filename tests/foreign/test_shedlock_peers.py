"""ShedLock (Java) and leasehold share the runs of one job, as processes of their own."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from leasehold import tables
from support import lock_peers as peers_module
from support.lock_peers import check_counting, lock_peers, note_kill

THEIRS = ("shedlock", "shedlock-clock")
"""With the server's clock (``usingDbTime``), and with that of the host."""

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def commands(program):
    job = str(Path(peers_module.PROGRAM).with_name("job_peer.py"))
    theirs = [*program("spring")[:-1], "Job"]
    return {"ours": [sys.executable, job], THEIRS[0]: theirs, THEIRS[1]: theirs}


@pytest.fixture(params=["postgres", "mariadb"])
def url(request):
    server = request.getfixturevalue(f"{request.param}_server").url
    url = f"{server}?layout=shedlock&margin=0"
    tables.create(url)
    return url


@pytest.mark.parametrize("theirs", THEIRS)
def test_three_and_three_count_together(redis_server, url, namespace, commands, theirs, record_property):
    with lock_peers(redis_server, url, namespace, 10.0, commands=commands) as peers:
        start = time.monotonic()
        check_counting(peers, (theirs,) * 3 + ("ours",) * 3, 300)
        record_property("s:layouts: 1,800 runs, shedlock", round(time.monotonic() - start, 1))


@pytest.mark.parametrize("theirs", THEIRS)
def test_a_run_happens_on_one_side_and_the_late_release_of_another_frees_none_of_ours(
    redis_server, url, namespace, commands, theirs
):
    with lock_peers(redis_server, url, namespace, 1.5, commands=commands) as peers:
        ours, first, second = peers.start("ours", theirs, theirs)
        assert ours.ask("begin") == "held 0"
        assert first.ask("begin") == "none"
        assert ours.ask("end") == "released"
        assert first.ask("begin") == "held 0"
        assert ours.ask("begin") == "none"
        time.sleep(1.7)  # it takes longer than its at_most
        assert ours.ask("begin") == "held 0"
        assert first.ask("end") == "released"
        assert second.ask("begin") == "none"
        assert ours.ask("end") == "released"


@pytest.mark.parametrize("theirs", THEIRS)
def test_a_killed_run_blocks_for_its_lease(redis_server, url, namespace, commands, theirs, record_property):
    with lock_peers(redis_server, url, namespace, 2.0, commands=commands) as peers:
        for killed, next_ in (("ours", theirs), (theirs, "ours"), ("ours", "ours")):
            holder, other = peers.start(killed, next_)
            assert holder.ask("begin") == "held 0"
            at = holder.kill()
            while other.ask("begin") != "held 0":
                time.sleep(0.02)
            took = time.monotonic() - at
            assert took < 2.0 + 0.3
            note_kill(peers, killed, next_, took, 2.0)
            record_property("ms:layouts: free after kill -9, shedlock", round(took * 1000))
            assert other.ask("end") == "released"
