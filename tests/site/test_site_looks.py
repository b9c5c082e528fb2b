"""The documentation site in a real browser, at the widths of a desktop and of a phone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.sync_api import Page, ViewportSize, expect

from support.browsers import Opened
from support.pictures import LARGEST_PICTURE

DESKTOP: ViewportSize = {"width": 1280, "height": 720}
PHONE: ViewportSize = {"width": 360, "height": 740}

SECTION = "Fencing: what no lock can do for you"


def search(page: Page, text: str) -> None:
    """Search as a reader does: at the width of a phone behind an icon."""
    if page.viewport_size == PHONE:
        page.locator("label.md-header__button[for=__search]").click()
    else:
        page.keyboard.press("/")
    page.keyboard.type(text)


@pytest.mark.timeout(300)
def test_no_page_is_wider_than_the_screen(site: Path, address: str, opened: Opened) -> None:
    page, pages = opened(viewport=PHONE), sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    index["docs"] = index["docs"][:1]
    page.route("**/search_index.json", lambda route: route.fulfill(json=index))  # the real one is most of the work
    wide = list[tuple[str, int]]()
    for size, names in ((PHONE, pages), (DESKTOP, pages[::8])):
        page.set_viewport_size(size)
        for name in names:
            page.goto(address + name)
            if page.evaluate("document.documentElement.scrollWidth") > size["width"]:
                wide.append((name, size["width"]))
    assert len(pages) > 50
    assert wide == []


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_search_leads_to_what_explains_a_term(address: str, opened: Opened, size: ViewportSize) -> None:
    page = opened(viewport=size)
    page.goto(address)
    search(page, "fencing")
    page.get_by_role("heading", name=SECTION).click()
    page.wait_for_url(f"{address}guide.html?h=fencing#fencing-*")
    found = page.locator("h2", has_text=SECTION)
    expect(found).to_be_in_viewport()
    expect(found.locator("mark")).to_contain_text("Fencing")


def test_the_pictures_of_the_docs(address: str, opened: Opened, pictures: Path) -> None:
    page, phone = opened(viewport=DESKTOP), opened(viewport=PHONE)
    page.goto(address)
    expect(page.get_by_role("navigation", name="Tabs")).to_be_visible()
    phone.goto(address)
    search(phone, "fencing")
    expect(phone.get_by_role("heading", name=SECTION)).to_be_visible()
    shown = {"site": page, "site-phone": phone}
    taken = [page.screenshot(path=pictures / f"{name}.png", animations="disabled") for name, page in shown.items()]
    assert max(map(len, taken)) < LARGEST_PICTURE
