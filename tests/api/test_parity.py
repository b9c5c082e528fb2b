"""Both flavors of each class have the same names, parameters, defaults and annotations."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator

import pytest

import leasehold
from support.modules import importable

MAGIC = {"__aenter__": "__enter__", "__aexit__": "__exit__", "__aiter__": "__iter__", "__anext__": "__next__"}
"""Special methods of ``async`` statements, and of their plain forms."""

ONLY_ASYNC = {"AsyncClient.__init__": {"runtime"}}
"""Parameters that one flavor has alone: a test may pass a runtime; the sync facade chooses its own."""


def twins() -> Iterator[tuple[type, type]]:
    for module_name in importable():
        if module_name.split(".")[1] in ("cli", "bench", "demo", "testing"):
            continue
        module = importlib.import_module(module_name)
        for name, cls in vars(module).items():
            if name.startswith("Async") and inspect.isclass(cls) and cls.__module__ == module_name:
                package = importlib.import_module(module_name.rpartition(".")[0])  # the client has a file for each
                for place in (module, package):
                    blocking = getattr(place, name.removeprefix("Async"), None)
                    if blocking is not None:
                        yield cls, blocking
                        break


PAIRS = list(twins())


@pytest.mark.parametrize(("awaits", "blocks"), PAIRS, ids=lambda cls: cls.__name__)
class TestTwins:
    def test_names(self, awaits: type, blocks: type) -> None:
        assert {MAGIC.get(name, name) for name in members(awaits)} == set(members(blocks))

    def test_parameters_and_annotations(self, awaits: type, blocks: type) -> None:
        for name, member in members(awaits).items():
            if name == "__init__" and takes_core(blocks):
                continue
            other = members(blocks)[MAGIC.get(name, name)]
            hidden = ONLY_ASYNC.get(f"{awaits.__name__}.{name}", set())
            assert written(member, hidden) == written(other, set()), f"{awaits.__name__}.{name}"

    def test_only_what_waits_is_awaited(self, awaits: type, blocks: type) -> None:
        for name, member in members(blocks).items():
            assert not inspect.iscoroutinefunction(member), f"{blocks.__name__}.{name} is a coroutine"
        for name, member in members(awaits).items():
            if name in MAGIC:
                assert "Coroutine[" in str(inspect.signature(member).return_annotation) or is_async(member), name

    def test_both_are_documented(self, awaits: type, blocks: type) -> None:
        for cls in (awaits, blocks):
            undocumented = [name for name, member in members(cls).items() if name[0] != "_" and not member.__doc__]
            assert inspect.getdoc(cls), cls
            assert not undocumented, f"{cls.__name__}: {undocumented}"

    def test_the_blocking_class_does_not_mention_await(self, awaits: type, blocks: type) -> None:
        assert isinstance(blocks.__doc__, str)
        assert "await " not in blocks.__doc__


def test_the_public_classes_are_among_the_pairs() -> None:
    assert {"AsyncClient", "AsyncHold", "AsyncLock", "AsyncRLock"} <= {awaits.__name__ for awaits, _ in PAIRS}
    public = {name for name in leasehold.__all__ if name.startswith("Async")}
    assert public <= {awaits.__name__ for awaits, _ in PAIRS}
    assert {name.removeprefix("Async") for name in public} <= set(leasehold.__all__)


def test_what_is_public_is_documented() -> None:
    for name in leasehold.__all__:
        member = getattr(leasehold, name)
        assert inspect.getdoc(member), name
        assert "Initialize self" not in (inspect.getdoc(member) or "")


def is_async(member: object) -> bool:
    return inspect.iscoroutinefunction(inspect.unwrap(member))  # type: ignore[arg-type]


def takes_core(blocks: type) -> bool:
    """Say whether it is made by the library, not by users: the sync facade is made of the asyncio one."""
    return list(inspect.signature(blocks).parameters) == ["core"]


def members(cls: type) -> dict[str, object]:
    """Return public methods and properties, inherited ones too, and the special ones of ``with``."""
    found: dict[str, object] = {}
    for base in reversed(cls.__mro__[:-1]):
        for name, member in vars(base).items():
            if name[0] != "_" or name in MAGIC or name in MAGIC.values() or name == "__init__":
                found[name] = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
    return {name: member for name, member in found.items() if callable(member) or isinstance(member, property)}


class Written(str):
    """A return annotation, shown as it is written."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def written(member: object, hidden: set[str]) -> str:
    """Return what is written in the signature, without the prefix ``Async``."""
    if isinstance(member, property):
        return f"property -> {written(member.fget, hidden)}"
    assert callable(member)
    signature = inspect.signature(member)
    returns = re.sub(
        r"^(?:Coroutine\[Any, Any, (.*)\])$", r"\1", str(signature.return_annotation)
    )  # as if it were async
    signature = signature.replace(return_annotation=Written(returns))
    parameters = [parameter for parameter in signature.parameters.values() if parameter.name not in hidden]
    return re.sub(r"\bAsync(?=[A-Z])", "", str(signature.replace(parameters=parameters)))


@pytest.mark.parametrize("client", [leasehold.Client, leasehold.AsyncClient], ids=lambda cls: cls.__name__)
def test_a_client_names_and_documents_each_keyword(client: type) -> None:
    """What help() and an editor show says all: no ``**options``, and a line for each parameter."""
    for name, member in members(client).items():
        if isinstance(member, property) or name in MAGIC or name in MAGIC.values():
            continue
        assert callable(member)
        parameters = list(inspect.signature(member).parameters.values())[1:]
        assert all(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters), name
        if len(parameters) > 1:
            text = inspect.getdoc(member) or ""
            missing = [parameter.name for parameter in parameters if f"\n    {parameter.name}: " not in text]
            assert not missing, f"{client.__name__}.{name} does not document {missing}"
