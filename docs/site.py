"""Adds to the documentation site what stands elsewhere in the repository: hooks of MkDocs.

- The front page is the README; the changelog and the page for contributors are those of the repository.
- The reference has a page for each public module, made from the docstrings of its public names.
- A link to a file that is no page leads to the repository.
- ``llms.txt`` lists the pages, as programs that read documentation expect it.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

TOP = Path(__file__).parent.parent
COPIED = {"index.md": "README.md", "changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md"}
"""Pages of the site, and what they are made of."""

LINK = re.compile(r"\]\((?!https?://|mailto:|#)([^)#\s]+)(#[^)\s]*)?\)")


def public_names() -> dict[str, dict[str, bool]]:
    """Return the public names of each public module, and whether users may construct them, from the tests' listing."""
    names: dict[str, dict[str, bool]] = {}
    module = name = ""
    for line in (TOP / "tests" / "api" / "public_surface.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith(" "):
            module = line.split()[0]
            names[module] = {}
        elif found := re.match(r"  (class )?([A-Za-z_]\w*)(?=[(:]| ->|$)", line):
            name = found[2]
            names[module][name] = found[1] is None
        elif line.startswith("    __init__("):
            names[module][name] = True
    return names


def on_config(config: Any) -> Any:
    """Replace each folder in the navigation by its pages."""
    config.nav = [_expanded(entry) for entry in config.nav]
    return config


def _expanded(entry: Any) -> Any:
    ((title, what),) = entry.items()
    if isinstance(what, str) and not what.endswith("/"):
        return entry
    places = what if isinstance(what, list) else [what]
    return {title: [page for place in places for page in _pages(place)]}


def _pages(place: str) -> Iterator[str]:
    if place == "reference/":
        yield from (f"reference/{module}.md" for module in public_names())
    elif place.endswith("/"):
        pages = sorted((TOP / "docs" / place).glob("*.md"), key=lambda path: (path.name != "README.md", path.name))
        yield from (f"{place}{path.name}" for path in pages)
    else:
        yield place


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made here."""
    for page, source in COPIED.items():
        text = (TOP / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=_moved(text)))
    for module, names in public_names().items():
        files.append(File.generated(config, f"reference/{module}.md", content=_reference(module, names)))
    return files


def _moved(text: str) -> str:
    """Return a page of the repository's top folder with its links as of the folder ``docs``."""
    pages = {source: page for page, source in COPIED.items()}

    def target(found: re.Match[str]) -> str:
        place, anchor = found[1], found[2] or ""
        if place.startswith("docs/"):
            return f"]({place.removeprefix('docs/')}{anchor})"
        return f"]({pages.get(place, f'../{place}')}{anchor})"

    return LINK.sub(target, text)


def _reference(module: str, names: dict[str, bool]) -> str:
    loaded = importlib.import_module(module)
    blocks = [f"# {module}", (loaded.__doc__ or "").split("\n\n")[0]]
    for name, constructed in names.items():
        thing = getattr(loaded, name)
        home = getattr(thing, "__module__", module)
        known = isinstance(home, str) and home.startswith("leasehold") and hasattr(thing, "__qualname__")
        block = f"::: {home}.{thing.__qualname__}" if known else f"::: {module}.{name}"
        blocks.append(block if constructed else f"{block}\n    options: {{merge_init_into_class: false}}")
    return "\n\n".join(blocks) + "\n"


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Let links to files that are no pages lead to the repository."""
    folder = (TOP / "docs" / page.file.src_uri).parent

    def target(found: re.Match[str]) -> str:
        place = (folder / found[1]).resolve()
        if place.is_relative_to(TOP) and place.exists() and not place.is_relative_to(TOP / "docs"):
            inside = place.relative_to(TOP).as_posix()
            pages = {source: name for name, source in COPIED.items()}
            if inside in pages:
                return f"]({'../' * page.file.src_uri.count('/')}{pages[inside]}{found[2] or ''})"
            return f"]({config.repo_url}/blob/main/{inside})"
        return found[0]

    return LINK.sub(target, markdown)


def on_post_build(config: Any) -> None:
    """Write ``llms.txt``."""
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", ""]
    for entry in config.nav:
        ((title, places),) = entry.items()
        lines += [f"## {title}", ""]
        for place in places if isinstance(places, list) else [places]:
            page = re.sub(r"README\.md$", "index.md", place).removesuffix(".md")
            lines.append(f"- [{page}]({page}.html)")
        lines.append("")
    (Path(config.site_dir) / "llms.txt").write_text("\n".join(lines), encoding="utf-8")
