"""Histories in which a leave overtakes its own claim, on another connection: the server sees if the claim counts."""

from __future__ import annotations

import pytest

from models.history import SeenByServers, run
from models.system import Spoilt

MOST = 1500
"""Seeds within which a broken lock must be found."""

FORGETS = {
    "mutex": (b"if state[7] and string.find(state[7], ticket, 1, true) then", b"if false then"),
    "shares": (b"if refused(s.refused, ticket) then", b"if false then"),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("which", FORGETS)
def test_a_claim_that_counts_after_its_leave_is_found(which: str) -> None:
    spoilt = Spoilt(lambda text: text.replace(*FORGETS[which]))
    for seed in range(MOST):
        if isinstance(run(seed, "redis", spoilt).error, SeenByServers):
            print(f"\nfound by history {seed + 1}")
            assert run(seed, "redis").ok
            return
    pytest.fail(f"not found in {MOST} histories")
