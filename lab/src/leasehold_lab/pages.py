"""The frame of the pages that demo, verify and bench write: one stylesheet, and no other file."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from html import escape
from importlib import resources


@cache
def style() -> str:
    """Return the stylesheet."""
    return resources.files("leasehold_lab").joinpath("pages.css").read_text(encoding="utf-8")


def document(title: str, body: str) -> str:
    """Return a self-contained page, as HTML that is also well-formed XML."""
    return (
        '<html xmlns="http://www.w3.org/1999/xhtml" lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        f'<meta name="color-scheme" content="light dark"/><title>{escape(title)}</title><style>{style()}</style></head>'
        f"<body>{body}</body></html>\n"
    )


def definitions(pairs: Mapping[str, str]) -> str:
    """Return a list of names, each with its text."""
    return "<dl>" + "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in pairs.items()) + "</dl>"


def color_key(entries: Mapping[str, str]) -> str:
    """Return a list of what a drawing shows: for each text a small picture, the inside of an SVG of 32 by 12 pixels."""
    items = (
        f'<li><svg viewBox="0 0 32 12" aria-hidden="true">{drawing}</svg>{escape(text)}</li>'
        for text, drawing in entries.items()
    )
    return f'<ul class="keys">{"".join(items)}</ul>'
