"""The documentation site builds without a warning, has every public name, and each of its links leads somewhere."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

TOP = Path(__file__).parents[2]

LISTING = TOP / "tests" / "api" / "public_surface.txt"


class Page(HTMLParser):
    """The targets of links on a page, where it links to, and what a browser fetches with it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids.add(given.get("id", ""))
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and given.get("rel") not in ("canonical", "prev", "next"):
            self.fetched.append(given.get("href", ""))
        elif tag in ("script", "img", "iframe"):
            self.fetched.append(given.get("src", ""))


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in site.rglob("*.html") if path.name != "404.html"}


def test_every_link_leads_somewhere(site: Path, pages: dict[Path, Page]) -> None:
    checked, broken = 0, list[str]()
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            checked += 1
            anchor = unquote(parts.fragment)
            known = target in pages and (not anchor or anchor in pages[target].ids or anchor.startswith("__"))
            if not (known or (target.is_file() and target not in pages)):
                broken.append(f"{path.relative_to(site)}: {link}")
    assert checked > 1000
    assert broken == []


def test_nothing_is_fetched_from_elsewhere(pages: dict[Path, Page]) -> None:
    fetched = [source for page in pages.values() for source in page.fetched]
    assert fetched
    assert [source for source in fetched if urlsplit(source).netloc] == []


def test_the_reference_has_every_public_name(site: Path, pages: dict[Path, Page]) -> None:
    module, count, missing = "", 0, list[str]()
    for line in LISTING.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith(" "):
            module = line.split()[0]
        elif found := re.match(r"  class ([A-Za-z_]\w*)", line):
            count += 1
            ids = pages[site / "reference" / f"{module}.html"].ids
            if not any(anchor == found[1] or anchor.endswith(f".{found[1]}") for anchor in ids):
                missing.append(f"{module}.{found[1]}")
    assert count > 50
    assert missing == []


def test_llms_txt_lists_the_pages(site: Path, pages: dict[Path, Page]) -> None:
    links = re.findall(r"\]\(([^)]+)\)", (site / "llms.txt").read_text(encoding="utf-8"))
    assert {site / link for link in links} == set(pages)
