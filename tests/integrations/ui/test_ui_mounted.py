"""The app without a browser: mounted in a host application, with both flavors, and what it refuses."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import HTTPConnection

import leasehold.ui
from leasehold import AsyncClient, Client, LeaseLost
from leasehold.ui.breaking import audit


@pytest.mark.parametrize(
    ("options", "token", "said"),
    [
        (("--host", "0.0.0.0"), "", "LEASEHOLD_UI_TOKEN"),
        (("--every", "0"), "", "0.1 s at least"),
        ((), "short", "LEASEHOLD_UI_TOKEN: the token of the console must have 16 characters"),
    ],
)
def test_what_the_command_refuses(options: tuple[str, ...], token: str, said: str) -> None:
    command = [sys.executable, "-m", "leasehold", "ui", "--url", "memory:", *options]
    environment = {**os.environ, "LEASEHOLD_UI_TOKEN": token}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert done.returncode == 64
    assert said in done.stderr
    assert done.stdout == ""


def test_what_the_app_refuses() -> None:
    with pytest.raises(TypeError, match=r"takes a leasehold\.AsyncClient"):
        leasehold.ui.app("redis://h")  # type: ignore[arg-type]
    with Client.from_url("memory:") as client:
        with pytest.raises(ValueError, match="16 characters"):
            leasehold.ui.app(client, token="short")
        with pytest.raises(ValueError, match=r"0\.1 s at least"):
            leasehold.ui.app(client, every=0)


class Everybody(AuthenticationBackend):
    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, SimpleUser] | None:
        return (AuthCredentials(["admin"]), SimpleUser("ada")) if "x-user" in conn.headers else None


@pytest.mark.parametrize("flavor", [AsyncClient, Client])
def test_mounted_behind_the_logins_of_a_host(flavor: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> tuple[dict[str, Any], int, int]:
        client = flavor.from_url(f"sqlite:{tmp_path}/locks.db")
        host = FastAPI()
        host.add_middleware(AuthenticationMiddleware, backend=Everybody())
        host.mount("/admin/locks", leasehold.ui.app(client, allow_break=True))
        async with AsyncClient.from_url(f"sqlite:{tmp_path}/locks.db") as other:
            hold = await other.lock("job").acquire()
            transport = httpx.ASGITransport(host)
            async with httpx.AsyncClient(transport=transport, base_url="http://host") as browser:
                page = await browser.get("/admin/locks/")
                assert 'href="static/style.css"' in page.text
                assert (await browser.get("/admin/locks/static/style.css")).status_code == 200
                assert (await browser.get("/admin/locks", follow_redirects=True)).text == page.text
                event = await first_event(host, "/admin/locks/api/lock", "name=job")
                csrf = {"x-csrf-token": browser.cookies["leasehold_csrf"], "x-user": "1"}
                body = {"name": "job", "token": event["lock"]["token"], "reason": "it hangs"}
                done = await browser.post("/admin/locks/api/break", json=body, headers=csrf)
            with pytest.raises(LeaseLost):
                await hold.release()
        closed = client.close()
        if closed is not None:
            await closed
        return event, hold.token, done.status_code

    audit.propagate = True
    with caplog.at_level("WARNING", logger="leasehold.ui.audit"):
        event, token, status = asyncio.run(story())
    assert (event["lock"]["token"], status) == (str(token), 200)
    assert [record.leasehold["user"] for record in caplog.records if record.name == audit.name] == ["ada", "ada"]  # type: ignore[attr-defined]


async def first_event(app: Any, path: str, query: str) -> dict[str, Any]:
    """Return the first event of a stream, and hang up: httpx's transport for apps waits for the end of an answer."""
    found: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    gone = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if not hasattr(receive, "begun"):
            receive.begun = True  # type: ignore[attr-defined]
            return {"type": "http.request", "body": b"", "more_body": False}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        body = message.get("body", b"")
        if body.startswith(b"data:") and not found.done():
            found.set_result(body)

    headers = [(b"host", b"host")]
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http",
        "path": path, "raw_path": path.encode(), "query_string": query.encode(), "root_path": "", "headers": headers,
        "client": ("127.0.0.1", 1), "server": ("host", 80),
    }  # fmt: skip
    task = asyncio.create_task(app(scope, receive, send))
    await asyncio.wait([task, found], timeout=10, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        task.result()
    event = await asyncio.wait_for(found, 1)
    gone.set()
    await task
    return json.loads(event.removeprefix(b"data:"))
