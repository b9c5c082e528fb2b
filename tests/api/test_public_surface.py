"""The public names and signatures are those of the committed listing, `public_surface.txt`.

After a deliberate change, write the listing anew and commit it with the change and a line in ``CHANGELOG.md``::

    python tests/api/test_public_surface.py
"""

from __future__ import annotations

import enum
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import ForwardRef, Generic

LISTING = Path(__file__).with_name("public_surface.txt")

MODULES = (
    "leasehold",
    "leasehold.events",
    "leasehold.store_api",
    "leasehold.guards",
    "leasehold.guards.etcd",
    "leasehold.guards.file",
    "leasehold.guards.redis",
    "leasehold.guards.sql",
    "leasehold.observability.combined",
    "leasehold.observability.history",
    "leasehold.observability.names",
    "leasehold.observability.recorder",
    "leasehold.postgres",
    "leasehold.tables",
    "leasehold.testing",
)

INSIDE = {"core", "engine", "_engine"}
"""First parameters of constructors that the library calls itself: no promise is made about those."""

SPECIAL = {f"__{name}__" for name in ("call", "enter", "exit", "aenter", "aexit", "iter", "next", "aiter", "anext")}


def surface() -> Iterator[str]:
    for name in MODULES:
        module = importlib.import_module(name)
        yield f"{name}"
        for public in sorted(public_names(module)):
            yield from lines(public, getattr(module, public))
        yield ""


def public_names(module: object) -> list[str]:
    listed: list[str] | None = getattr(module, "__all__", None)
    if listed is not None:
        return listed
    return [
        name
        for name, thing in vars(module).items()
        if name[0] != "_" and getattr(thing, "__module__", "") == getattr(module, "__name__", None)
    ]


def lines(name: str, thing: object) -> Iterator[str]:
    if inspect.isclass(thing):
        bases = [base.__name__ for base in thing.__bases__ if is_public(base)]
        yield f"  class {name}" + (f"({', '.join(bases)})" if bases else "")
        for member, text in sorted(class_members(thing).items()):
            yield f"    {member}{text}"
    elif inspect.isroutine(thing):
        yield f"  {'async ' * inspect.iscoroutinefunction(thing)}def {name}{signature(thing)}"
    else:
        yield f"  {name} = {thing!r}"


def is_public(base: type) -> bool:
    if base.__module__.startswith("leasehold"):
        return any(getattr(importlib.import_module(module), base.__name__, None) is base for module in MODULES)
    return base not in (object, Generic)


def class_members(cls: type) -> dict[str, str]:
    if issubclass(cls, enum.Enum):
        return {name: f" = {member.value!r}" for name, member in cls.__members__.items()}
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if not base.__module__.startswith("leasehold"):
            continue
        for name, kind in inspect.get_annotations(base).items():
            if name[0] != "_":
                found[name] = f": {kind.__forward_arg__ if isinstance(kind, ForwardRef) else kind}"
        for name, member in vars(base).items():
            listed = name in SPECIAL or name[0] != "_" or (name == "__init__" and not is_inside(cls, member))
            if listed and (text := member_text(member)):
                found[name] = text
    return found


def is_inside(cls: type, init: object) -> bool:
    assert callable(init)
    if getattr(cls, "_is_protocol", False):
        return True
    parameters = list(inspect.signature(init).parameters)
    return len(parameters) > 1 and parameters[1] in INSIDE


def member_text(member: object) -> str:
    if isinstance(member, property):
        assert member.fget is not None
        return f": property{signature(member.fget).removeprefix('(self)')}"
    if isinstance(member, (classmethod, staticmethod)):
        return f"{signature(member.__func__)}  # {type(member).__name__}"
    if inspect.isfunction(member):
        return signature(member) + "  # async" * inspect.iscoroutinefunction(member)
    if hasattr(member, "__wrapped__"):  # of `ends_block`, which takes the block away
        return signature(member.__wrapped__).replace("block: Block, ", "")
    return ""


def signature(function: object) -> str:
    """Return a signature as it is written; the same in all versions of Python."""
    assert callable(function)
    found, star, parts = inspect.signature(function), False, list[str]()
    for parameter in found.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            parts.append("*")
        star = star or parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        text = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "") + parameter.name
        if parameter.annotation is not parameter.empty:
            text += f": {written(parameter.annotation)}"
        if parameter.default is not parameter.empty:
            text += f" = {parameter.default!r}"
        parts.append(text)
        if parameter.kind is parameter.POSITIONAL_ONLY:
            parts = [part for part in parts if part != "/"] + ["/"]
    returns = "" if found.return_annotation is found.empty else f" -> {written(found.return_annotation)}"
    return f"({', '.join(parts)}){returns}"


def written(annotation: object) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def listing() -> str:
    return "\n".join(surface()).rstrip() + "\n"


def test_the_public_surface_is_the_listed_one() -> None:
    assert listing().splitlines() == LISTING.read_text(encoding="utf-8").splitlines(), (
        "the public API has changed. If that is meant, run `python tests/api/test_public_surface.py`, "
        "commit the listing, and add a line to CHANGELOG.md; docs/api-stability.md says what may change when"
    )


if __name__ == "__main__":
    LISTING.write_text(listing(), encoding="utf-8")
