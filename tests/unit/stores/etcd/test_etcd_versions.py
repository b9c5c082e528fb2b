"""The first request to a cluster: which member says that it is etcd, and what is raised if none does."""

from __future__ import annotations

from typing import Any

import pytest

from leasehold._runtimes.base import finish
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold.errors import StoreUnavailable
from leasehold.stores.etcd.connection.gateway import Gateway
from leasehold.stores.etcd.connection.settings import Settings
from leasehold.stores.etcd.http.base import Endpoint, Reply, Request, Unsent

RUNTIME = BlockingRuntime()
ETCD = Reply(200, b'{"etcdserver":"3.5.16","etcdcluster":"3.5.0"}')
BAD_GATEWAY = Reply(502, b"")
UNAVAILABLE = Reply(503, b"<html>503 Service Unavailable</html>")
OTHER = Reply(200, b"<html>It works!</html>")
NOT_THERE = Reply(404, b"404 page not found\n")
DOWN = None


class Members:
    """Members of a cluster, each with what it answers when it is asked for its version; None if it is down."""

    def __init__(self, *answers: Reply | None) -> None:
        self.settings = Settings("members", tuple(Endpoint("e", number) for number in range(len(answers))))
        self.answers = answers

    async def ask(self, endpoint: Endpoint, request: Request, until: float, *, urgent: bool = False) -> Reply:
        answer = self.answers[endpoint.port]
        if answer is None:
            raise Unsent("connection refused")
        return answer if request.target == "/version" else Reply(200, b'{"asked":%d}' % endpoint.port)


def asked(*answers: Reply | None) -> int:
    """Send a request to a cluster; return the number of the member that answers it."""
    members: Any = Members(*answers)
    gateway = Gateway(RUNTIME, members.settings, members)
    return int(finish(gateway.call("/v3/kv/range", {}, RUNTIME.now() + 5.0))["asked"])


@pytest.mark.parametrize("first", [BAD_GATEWAY, UNAVAILABLE, OTHER, NOT_THERE, DOWN])
def test_a_member_that_does_not_say_that_it_is_etcd_is_left_for_the_next_one(first: Reply | None) -> None:
    assert asked(first, ETCD, ETCD) == 1
    assert asked(first, first, ETCD) == 2


@pytest.mark.parametrize(
    ("answers", "words", "lasting"),
    [
        ((BAD_GATEWAY,), "HTTP status 502", False),
        ((UNAVAILABLE, UNAVAILABLE), "HTTP status 503", False),
        ((OTHER, NOT_THERE), "is not etcd", True),
        ((OTHER, UNAVAILABLE), "HTTP status 503", False),
        ((UNAVAILABLE, OTHER), "HTTP status 503", False),
        ((OTHER, DOWN), "cannot be reached", False),
    ],
)
def test_only_a_cluster_without_a_member_that_may_be_etcd_is_refused_for_good(
    answers: tuple[Reply | None, ...], words: str, lasting: bool
) -> None:
    with pytest.raises(StoreUnavailable, match=words) as failed:
        asked(*answers)
    assert (failed.value.lasting, failed.value.unknown) == (lasting, False)
