"""Behind a real nginx, with the lines that the documentation gives: live updates, breaking, logging in."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.sync_api import expect
from ui_console import TOKEN, Console, Served, changes

from leasehold import Client
from leasehold_lab.demo.children import Children, DemoError, nginx_server
from support.browsers import Opened

TOP = Path(__file__).parents[3]

Proxied = Callable[..., str]


def location(console: Served, *, cut: bool) -> str:
    """Return the lines of the documentation, for a console that runs."""
    page = (TOP / "docs" / "integrations" / "ui.md").read_text(encoding="utf-8")
    (lines,) = re.findall(r"```nginx\n(.*?)```", page, flags=re.DOTALL)
    said = "http://127.0.0.1:8470;"
    assert said in lines
    return lines.replace(said, f"http://127.0.0.1:{urlsplit(console.address).port}{'/' if cut else ''};")


@pytest.fixture
def proxied(served: Console, tmp_path: Path) -> Iterator[Proxied]:
    """Return a function that starts a console behind nginx, and returns its address there."""
    with ExitStack() as stack:

        def start(*options: str, cut: bool = False, token: str = "") -> str:
            console = served(*options, *(() if cut else ("--prefix", "/locks")), token=token)
            children = stack.enter_context(Children(tmp_path))
            try:
                port = children.proxy(partial(nginx_server, locations=location(console, cut=cut)))
            except DemoError as error:
                if os.environ.get("CI"):
                    raise
                pytest.skip(f"LEFT OUT: {error}")
            return f"http://127.0.0.1:{port}/locks/"

        yield start


@pytest.mark.parametrize("cut", [False, True], ids=["keeps", "cuts"])
def test_through_nginx_a_change_is_shown_within_a_second_and_a_lock_is_broken(
    proxied: Proxied, locks: Client, opened: Opened, apart: Callable[..., Any], cut: bool
) -> None:
    page, address = opened(), proxied("--allow-break", cut=cut)
    page.goto(address)
    expect(page.locator("#live")).to_have_text("Live")
    waited = changes(page, locks, apart)
    hold = apart(locks.lock("job", lease=60, renew=False).acquire)
    page.get_by_role("link", name="job").click()
    expect(page).to_have_url(f"{address}lock?name=job")
    page.get_by_role("button", name="Break the hold of").click()
    page.get_by_label("Reason").fill("it hangs")
    page.get_by_label("To confirm").fill(str(hold.token)[-4:])
    page.get_by_role("button", name="Break the hold", exact=True).click()
    expect(page.locator("#said")).to_contain_text("Broken.")
    assert apart(locks.inspect, "job") is None
    took = sorted(waited)[-2]  # one of ten may meet a pause of the machine
    print(f"through nginx a change is shown in {took:.2f} s at most")
    assert took < 1.0, waited


def test_through_nginx_another_name_of_the_host_needs_a_token(proxied: Proxied) -> None:
    with httpx.Client(base_url=proxied(token=TOKEN), headers={"host": "ops.example"}) as browser:
        assert browser.get("").headers["location"] == "login"
        entered = browser.post("login", data={"token": TOKEN})
        assert entered.status_code == 303
        session = entered.headers["set-cookie"].split(";")[0]
        assert browser.get("api/doctor", headers={"cookie": session}).status_code == 200


def test_through_nginx_without_a_token_another_name_is_refused(proxied: Proxied) -> None:
    address = proxied()
    assert httpx.get(address).status_code == 200
    assert httpx.get(address, headers={"host": "ops.example"}).status_code == 421


def test_behind_tls_cookies_stay_on_tls(served: Console) -> None:
    address = served(token=TOKEN).address
    for scheme, secure in (("https", True), ("http", False)):
        headers = {"x-forwarded-proto": scheme}
        entered = httpx.post(f"{address}login", data={"token": TOKEN}, headers=headers)
        assert entered.status_code == 303
        assert ("secure" in entered.headers["set-cookie"].lower()) is secure
