"""The code, the tests and the documentation use the terms of the field, and none of the words that once stood for them.

An HTML page may be a page, and a line of text a line: only words that have no other use here are looked for.
"""

from __future__ import annotations

import functools
import io
import re
import tokenize
from pathlib import Path

TOP = Path(__file__).parents[2]

RETIRED = {
    "agenda": "timer queue",
    "anchors": "clock samples",
    "arena": "context",
    "ballot": "proposal",
    "barred": "blocked",
    "bequest": "hand-over",
    "bustle": "background load",
    "colour": "flavor",
    "debt": "pending release",
    "departure": "release reason",
    "ears": "subscriptions",
    "grip": "handle",
    "heir": "next waiter",
    "keeper": "watchdog",
    "nudge": "notify",
    "nursery": "forkserver",
    "owe": "retry",
    "panel": "nodes",
    "seat": "queue entry",
    "tether": "parent guard",
    "wire": "transport",
    "wish": "request",
}
"""Each retired word, and what is said instead."""

PHRASES = {
    "blocking face": "sync facade",
    "stand-in": "backup thread",
    "was not had": "could not acquire",
}
"""The same for words that are retired together only."""

OTHER_SENSES = re.compile(r"wire (?:format|protocol)s?|over the wire|on the wire", re.IGNORECASE)
"""What the words may still mean in prose."""

GRAFANA = TOP / "tests/integrations/metrics/test_scraped.py"
"""What it tests consists of panels."""

EXCLUDED = {Path(__file__), GRAFANA}

SOURCES = [
    path
    for folder in ("src", "lab/src", "tests", "examples")
    for path in sorted((TOP / folder).rglob("*.py"))
    if path not in EXCLUDED
]
SCRIPTS = [path for pattern in ("src/**/*.lua", "specs/*.tla", "specs/*.toml") for path in sorted(TOP.glob(pattern))]
PAGES = [TOP / "README.md", TOP / "CONTRIBUTING.md", TOP / "SECURITY.md", *sorted((TOP / "docs").rglob("*.md"))]


TERMS = "|".join([*RETIRED, *PHRASES])
RETIRED_TEXT = re.compile(rf"(?<![a-z])(?:{TERMS})s?(?![a-z])")


def shown(path: Path) -> str:
    return path.relative_to(TOP).as_posix()


@functools.cache
def retired_words_of(name: str) -> set[str]:
    """Return the words of an identifier that are retired, in the singular as well."""
    words = [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]
    return RETIRED.keys() & {*words, *(word.removesuffix("s") for word in words)}


def test_identifiers_and_file_names_use_the_terms_of_the_field() -> None:
    wrong = dict[str, set[str]]()
    for path in SOURCES:
        names = {path.stem, *path.relative_to(TOP).parts}
        with io.StringIO(path.read_text(encoding="utf-8")) as text:
            names |= {token.string for token in tokenize.generate_tokens(text.readline) if token.type == tokenize.NAME}
        found = {f"{name}: say {RETIRED[word]}" for name in names for word in retired_words_of(name)}
        if found := {one for one in found if "ZooKeeper" not in one}:
            wrong[shown(path)] = found
    assert wrong == {}


def test_prose_uses_the_terms_of_the_field() -> None:
    wrong = dict[str, list[str]]()
    for path in [*SOURCES, *SCRIPTS, *PAGES]:
        text = OTHER_SENSES.sub("", path.read_text(encoding="utf-8"))
        if path.suffix == ".md":
            text = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
        if found := RETIRED_TEXT.findall(text.lower()):
            wrong[shown(path)] = found
    assert wrong == {}


def test_lines_of_the_documentation_are_short() -> None:
    lines = [(shown(path), line) for path in PAGES for line in path.read_text(encoding="utf-8").splitlines()]
    assert [each for each in lines if len(each[1]) > 120 and not each[1].startswith(("|", "ACL SETUSER"))] == []


def test_a_retired_word_is_found() -> None:
    assert RETIRED_TEXT.findall("seats of a keeper; no bookkeeper was not had") == ["seats", "keeper", "was not had"]
    assert retired_words_of("SeatsOfKeeper") == {"keeper", "seat"}
