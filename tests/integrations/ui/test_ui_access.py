"""Who may see the console, who may break a lock, and what is recorded of it."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
from playwright.sync_api import expect
from ui_console import TOKEN, Console

from leasehold import Client
from leasehold_lab.servers import RedisServer
from support.browsers import Opened

BREAK = {"name": "job", "token": "1", "reason": "it hangs"}


def test_breaking_with_confirmation_and_an_audit_log(
    served: Console, locks: Client, opened: Opened, tmp_path: Path
) -> None:
    log = tmp_path / "audit.jsonl"
    with ThreadPoolExecutor(1) as pool:
        hold = pool.submit(locks.lock("job", lease=3).acquire).result()
        page = opened()
        page.goto(f"{served('--allow-break', '--audit-log', str(log)).address}lock?name=job")
        page.get_by_role("button", name="Break the hold of").click()
        button = page.get_by_role("button", name="Break the hold", exact=True)
        expect(page.get_by_role("dialog", name="Break this hold?")).to_contain_text(str(hold.token))
        page.get_by_label("Reason").fill("it hangs")
        expect(button).to_be_disabled()
        page.get_by_label("To confirm").fill(str(hold.token)[-4:])
        button.click()
        expect(page.locator("#said")).to_contain_text("Broken.")
        expect(page.locator("#holders")).to_contain_text("Nobody holds it")
        expect(page.locator("#broken")).to_contain_text("it hangs")
        pool.submit(lambda: hold.lost or hold.release()).exception()
    records = [json.loads(line) for line in log.read_text().splitlines()]
    assert [record["result"] for record in records] == ["asked", "broken"]
    assert {(record["name"], record["token"], record["reason"]) for record in records} == {
        ("job", hold.token, "it hangs")
    }


def test_the_token(served: Console, opened: Opened) -> None:
    page, address = opened(), served(token=TOKEN).address
    page.goto(address)
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    page.get_by_label("Token").fill("a-wrong-token-of-this-length")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_have_text("That is not the token.")
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("button", name="Log in").click()
    expect(page.locator("#live")).to_have_text("Live")
    assert all(TOKEN not in cookie["value"] for cookie in page.context.cookies())
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    assert httpx.get(f"{address}api/doctor").status_code == 401
    assert httpx.get(f"{address}api/doctor", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200
    assert httpx.get(f"{address}api/doctor", headers={"authorization": "Bearer wrong"}).status_code == 401
    forged = httpx.get(address, headers={"cookie": "leasehold_ui_00000000=9999999999.00"})
    assert forged.status_code == 303


def test_a_token_that_ends_with_a_newline(served: Console) -> None:
    """A secret that was made with `echo`, or the text of a file."""
    address = served(token=f"{TOKEN}\n").address
    assert httpx.get(f"{address}api/doctor", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200
    for given, status in ((TOKEN, 303), (f" {TOKEN}\n", 303), ("another-token-of-this-length", 403)):
        assert httpx.post(f"{address}login", data={"token": given}).status_code == status


def test_headers_and_names_of_hosts(served: Console) -> None:
    address = served().address
    answer = httpx.get(address)
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["cache-control"] == "no-store"
    assert httpx.get(address, headers={"host": "attacker.example"}).status_code == 421
    assert httpx.post(f"{address}api/break", json=BREAK).status_code == 404  # read-only: there is no such route
    for path in ("static/list.html", "static/..%2fconsole.py", "static/%2e%2e/console.py"):
        assert httpx.get(address + path).status_code == 404


def test_a_forged_request_breaks_nothing(served: Console) -> None:
    address = served("--allow-break").address
    token = httpx.get(address).cookies["leasehold_csrf"]
    good = {"cookie": f"leasehold_csrf={token}", "x-csrf-token": token}
    attempts: list[tuple[dict[str, str], int]] = [
        ({}, 403),
        ({"cookie": good["cookie"]}, 403),
        ({**good, "x-csrf-token": "guessed-guessed-guessed"}, 403),
        ({**good, "sec-fetch-site": "cross-site"}, 403),
        ({**good, "origin": "http://attacker.example"}, 403),
        (good, 409),  # it passes, and nobody holds that name
    ]
    for headers, status in attempts:
        assert httpx.post(f"{address}api/break", json=BREAK, headers=headers).status_code == status, headers
    for wrong in ({**BREAK, "reason": " "}, {**BREAK, "token": "x"}, {**BREAK, "name": ""}, []):
        assert httpx.post(f"{address}api/break", json=wrong, headers=good).status_code == 400


def test_no_password_is_shown(served: Console, opened: Opened) -> None:
    with RedisServer() as server:
        server.command("ACL", "SETUSER", "app", "on", ">hunter2-secret", "~*", "&*", "+@all")
        url = server.url.replace("redis://", "redis://app:hunter2-secret@")
        page = opened()
        page.goto(served(url=url).address)
        expect(page.locator("#live")).not_to_have_text("Connecting")
        assert "hunter2" not in page.content()
        page.goto(page.url + "doctor")
        expect(page.locator("#summary")).not_to_have_text("Asking the store …")
        assert "hunter2" not in page.content()
