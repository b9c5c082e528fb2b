"""Members that are not etcd: which one is asked, at the first request and later, and what is raised if none answers."""

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


class Changing(Members):
    """Members that say at any time what they say when they are asked for their version, if that is not etcd's."""

    async def ask(self, endpoint: Endpoint, request: Request, until: float, *, urgent: bool = False) -> Reply:
        if self.answers[endpoint.port] not in (ETCD, DOWN):
            return self.answers[endpoint.port] or UNAVAILABLE
        return await super().ask(endpoint, request, until)


def members(*answers: Reply | None) -> tuple[Gateway, Any]:
    cluster: Any = Changing(*answers)
    return Gateway(RUNTIME, cluster.settings, cluster), cluster


def ask(gateway: Gateway) -> int:
    return int(finish(gateway.call("/v3/kv/range", {}, RUNTIME.now() + 5.0))["asked"])


def test_a_member_that_is_not_etcd_is_left_whenever_the_others_fail_for_a_moment() -> None:
    gateway, cluster = members(NOT_THERE, ETCD, ETCD)
    assert ask(gateway) == 1
    for down, other in ((1, 2), (2, 1), (1, 2)):
        cluster.answers = tuple(DOWN if number == down else answer for number, answer in enumerate(cluster.answers))
        assert ask(gateway) == other
        cluster.answers = (NOT_THERE, ETCD, ETCD)


@pytest.mark.parametrize(
    ("answers", "words", "lasting"),
    [
        ((NOT_THERE, NOT_THERE), "does not know this request", True),
        ((NOT_THERE, DOWN), "cannot be reached", False),
        ((DOWN, NOT_THERE), "cannot be reached", False),
    ],
)
def test_a_request_is_refused_for_good_only_if_no_member_may_be_etcd(
    answers: tuple[Reply | None, ...], words: str, lasting: bool
) -> None:
    gateway, cluster = members(*[ETCD for _ in answers])
    ask(gateway)
    cluster.answers = answers
    with pytest.raises(StoreUnavailable, match=words) as failed:
        ask(gateway)
    assert (failed.value.lasting, failed.value.unknown) == (lasting, False)
    cluster.answers = [ETCD for _ in answers]
    ask(gateway)
