"""When something beside the console fails: the audit log, the store, the server itself; and behind a proxy's prefix."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from ui_console import TOKEN, Console, Served

import leasehold.ui
from leasehold import Client, Hold
from leasehold.ui.breaking import Unrecorded, audit
from leasehold.ui.source import ANSWER_WITHIN
from leasehold_lab.servers import RedisServer

ENDS_WITHIN = 2.0
"""Seconds from a signal to the end of the server, while pages are open."""


@contextmanager
def stream(address: str, path: str) -> Iterator[Iterator[dict[str, Any]]]:
    """Open a page's stream; yield its events."""
    with httpx.Client(timeout=30) as browser, browser.stream("GET", address + path) as answer:
        assert answer.status_code == 200
        yield (json.loads(line[5:]) for line in answer.iter_lines() if line.startswith("data:"))


def end(served: Served) -> float:
    """Send SIGTERM; return the seconds until the process has ended."""
    began = time.monotonic()
    served.process.send_signal(signal.SIGTERM)
    served.process.wait(20)
    return time.monotonic() - began


# --- the audit log -------------------------------------------------------------------------------------------------


def break_it(address: str, hold: Hold) -> httpx.Response:
    body = {"name": hold.name, "token": str(hold.token), "reason": "it hangs"}
    csrf = httpx.get(address).cookies["leasehold_csrf"]
    headers = {"cookie": f"leasehold_csrf={csrf}", "x-csrf-token": csrf}
    return httpx.post(f"{address}api/break", json=body, headers=headers)


def holds(locks: Client, hold: Hold) -> bool:
    """Return whether a hold is in the store."""
    info = locks.inspect(hold.name)
    return info is not None and hold.token in [holder.token for holder in info.holders]


def test_nothing_is_broken_if_the_file_of_the_audit_log_is_full(served: Console, locks: Client) -> None:
    address = served("--allow-break", "--audit-log", "/dev/full").address
    with locks.lock("job") as hold:
        answer = break_it(address, hold)
        assert answer.status_code == 500
        assert "nothing was broken" in answer.json()["error"]
        assert holds(locks, hold)


def test_nothing_is_broken_if_standard_error_is_closed(served: Console, locks: Client) -> None:
    running = served("--allow-break")
    assert running.process.stderr is not None
    running.process.stderr.close()
    with locks.lock("job") as hold:
        assert break_it(running.address, hold).status_code == 500
        assert holds(locks, hold)


class Full(logging.Handler):
    """Takes so many records."""

    def __init__(self, records: int) -> None:
        super().__init__()
        self._left = records

    def emit(self, record: logging.LogRecord) -> None:
        self._left -= 1
        if self._left < 0:
            raise RuntimeError("the log is full")


async def asked_for(client: Client, body: dict[str, str]) -> httpx.Response:
    transport = httpx.ASGITransport(leasehold.ui.app(client, allow_break=True))
    async with httpx.AsyncClient(transport=transport, base_url="http://host") as browser:
        await browser.get("/")
        headers = {"x-csrf-token": browser.cookies["leasehold_csrf"]}
        return await browser.post("/api/break", json=body, headers=headers)


class StrictlyFull(Full):
    """Fails as the handlers of `leasehold ui` do."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            super().emit(record)
        except RuntimeError as error:
            raise Unrecorded from error


def test_an_error_of_a_break_is_not_called_a_break_that_was_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(client: Client, name: str, token: int) -> bool:
        raise OSError("the connection is gone")

    monkeypatch.setattr(Client, "force_release", broken)
    handler = StrictlyFull(1)
    audit.addHandler(handler)
    try:
        with Client.from_url("memory:") as client, pytest.raises(OSError, match="the connection is gone"):
            asyncio.run(asked_for(client, {"name": "job", "token": "1", "reason": "it hangs"}))
    finally:
        audit.removeHandler(handler)


def _disabled(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(audit, "disabled", True)  # as `logging.config.dictConfig` does with loggers that it does not name


def _all_disabled(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(logging.root.manager, "disable", logging.CRITICAL)
    patch.setattr(audit, "_cache", {})


@pytest.mark.parametrize("switch_off", [_disabled, _all_disabled])
def test_nothing_is_broken_if_the_audit_log_is_switched_off(
    monkeypatch: pytest.MonkeyPatch, switch_off: Callable[[pytest.MonkeyPatch], None]
) -> None:
    with Client.from_url("memory:") as client, client.lock("job") as hold:
        switch_off(monkeypatch)
        answer = asyncio.run(asked_for(client, {"name": "job", "token": str(hold.token), "reason": "it hangs"}))
        assert answer.status_code == 500
        assert "nothing was broken" in answer.json()["error"]
        assert holds(client, hold)


def test_a_root_logger_that_drops_warnings_does_not_drop_the_audit_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.root, "level", logging.ERROR)
    monkeypatch.setattr(audit, "_cache", {})
    assert audit.isEnabledFor(logging.WARNING)


@pytest.mark.parametrize(("records", "status", "said"), [(0, 500, "nothing was broken"), (1, 200, "has no record")])
def test_a_break_says_if_its_result_could_not_be_recorded(records: int, status: int, said: str) -> None:
    with Client.from_url("memory:") as client:
        hold = client.lock("job").acquire()
        assert hold is not None
        handler = Full(records)
        audit.addHandler(handler)
        try:
            answer = asyncio.run(asked_for(client, {"name": "job", "token": str(hold.token), "reason": "it hangs"}))
        finally:
            audit.removeHandler(handler)
        assert answer.status_code == status
        assert said in answer.json()["error"]
        assert holds(client, hold) is (status == 500)


# --- prefixes ------------------------------------------------------------------------------------------------------


def test_below_a_prefix(served: Console, locks: Client) -> None:
    address = served("--prefix", "/ops/locks/", "--allow-break").address
    assert address.endswith("/ops/locks/")
    assert httpx.get(address.removesuffix("ops/locks/")).status_code == 404
    assert str(httpx.get(address.rstrip("/"), follow_redirects=True).url) == address
    for path in ("", "lock?name=job", "doctor", "static/list.js", "api/doctor"):
        assert httpx.get(address + path).status_code == 200, path
    hold = locks.lock("job").acquire()
    assert hold is not None
    with stream(address, "api/lock?name=job") as events:
        shown = next(event for event in events if event["lock"]["token"])
    assert shown["lock"]["token"] == str(hold.token)
    assert break_it(address, hold).json()["result"] == "broken"
    assert not holds(locks, hold)


def test_below_a_prefix_it_records_before_the_first_page_opens(served: Console, locks: Client) -> None:
    address = served("--prefix", "locks").address
    with locks.lock("early") as hold:
        time.sleep(3)  # longer than the pause between two looks while no page is open
    with stream(address, "api/lock?name=early") as events:
        [seen] = next(events)["history"]["intervals"]
    assert seen["token"] == str(hold.token)


def test_the_token_below_a_prefix(served: Console) -> None:
    address = served("--prefix", "/ops", token=TOKEN).address
    with httpx.Client(base_url=address) as browser:
        refused = browser.get("doctor")
        assert (refused.status_code, refused.headers["location"]) == (303, "login")
        assert browser.get("api/doctor").status_code == 401
        assert browser.get("static/style.css").status_code == 200
        entered = browser.post("login", data={"token": TOKEN}, follow_redirects=True)
        assert (entered.status_code, str(entered.url)) == (200, address)
        assert browser.get("api/doctor").status_code == 200


def test_the_root_path_of_a_proxy() -> None:
    """`uvicorn --root-path` puts the prefix that a proxy cut off before the path again, as ASGI asks."""

    async def story(client: Client) -> None:
        host = FastAPI()
        host.mount("/admin/locks", leasehold.ui.app(client, token=TOKEN))
        transport = httpx.ASGITransport(host, root_path="/proxy")
        path = "/proxy/admin/locks/"
        async with httpx.AsyncClient(transport=transport, base_url="http://host") as browser:
            assert (await browser.get(f"{path}api/doctor")).status_code == 401
            assert (await browser.get(f"{path}static/style.css")).status_code == 200
            assert (await browser.get(path)).headers["location"] == "login"
            assert (await browser.get(f"{path}login")).status_code == 200
            bearer = {"authorization": f"Bearer {TOKEN}"}
            assert (await browser.get(f"{path}api/doctor", headers=bearer)).status_code == 200

    with Client.from_url("memory:") as client:
        asyncio.run(story(client))


# --- ends ----------------------------------------------------------------------------------------------------------


def test_it_ends_at_once_while_pages_are_open(served: Console) -> None:
    running = served()
    with (
        stream(running.address, "api/locks") as one,
        stream(running.address, "api/lock?name=job") as other,
    ):
        assert next(one)
        assert next(other)
        assert end(running) < ENDS_WITHIN
        assert list(one) is not None  # its end is a regular one


def test_a_frozen_store_is_named_and_does_not_keep_the_server(served: Console) -> None:
    with RedisServer() as store:
        running = served("--allow-break", url=store.url)
        with ThreadPoolExecutor(1) as pool, stream(running.address, "api/lock?name=job") as events:
            assert next(events)["status"]["error"] == ""
            store.pause()
            try:
                began = time.monotonic()
                findings = pool.submit(httpx.get, f"{running.address}api/doctor", timeout=30)
                assert next(event for event in events if event["status"]["error"])["status"]["failing_since"]
                assert findings.result().status_code == 503
                noticed = time.monotonic() - began
                ended = end(running)
            finally:
                store.resume()
    print(f"a frozen store is noticed in {noticed:.1f} s; the server ended in {ended:.1f} s")
    assert noticed < ANSWER_WITHIN + 2
    assert ended < ENDS_WITHIN
