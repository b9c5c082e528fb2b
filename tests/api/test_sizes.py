"""Small files and folders: one reason each, and few enough to be found by their names."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

TOP = Path(__file__).parents[2]

MOST_LINES = 350
"""Lines of a file of Python."""

MOST_FILES = 15
"""Files of Python directly in a folder."""

FILES = [path for folder in ("src", "lab/src", "tests", "examples") for path in sorted((TOP / folder).rglob("*.py"))]


def test_no_file_is_long() -> None:
    lines = {str(path.relative_to(TOP)): len(path.read_bytes().splitlines()) for path in FILES}
    assert len(lines) > 1000
    assert {path: count for path, count in lines.items() if count > MOST_LINES} == {}


def test_no_folder_has_many_files() -> None:
    files = Counter(str(path.parent.relative_to(TOP)) for path in FILES)
    assert len(files) > 100
    assert {folder: count for folder, count in files.items() if count > MOST_FILES} == {}
