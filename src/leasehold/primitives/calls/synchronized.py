"""A function under a lock that its arguments name: `AsyncSynchronized` and its sync facade `Synchronized`.

The name of the lock is a template, ``order:{order_id}``, which is checked as early as possible. Different arguments
give different names. Where a template has several fields, ``%`` and the character that follows a field are
percent-encoded in its value, so that no value runs into the next field: ``{a}:{b}`` is ``x%3Ay:z`` for ``"x:y", "z"``.
Values with the same text, as ``7`` and ``"7"``, give the same name.
"""

from __future__ import annotations

import functools
import inspect
import re
import string
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, ParamSpec, TypeVar

from leasehold import _validate
from leasehold._engine.engine import Engine
from leasehold.primitives.bases import (
    Facade,
    function_name,
    refuse_coroutines,
    refuse_returned_coroutine,
    require_coroutine_function,
    require_function,
)
from leasehold.primitives.locks.options import Options
from leasehold.primitives.locks.rlock import AsyncRLock, Entries, RLock

P = ParamSpec("P")
T = TypeVar("T")

Naming = str | Callable[..., str]
"""A format string over the arguments, or a function that is called with them."""


class AsyncSynchronized:
    """A decorator for coroutine functions: each call runs under a re-entrant lock, named by its arguments.

    Example:
        ```python
        @client.synchronized("order:{order_id}", timeout=5)
        async def ship(order_id):
            return f"shipped {order_id}"

        await ship(7)
        ```
    """

    def __init__(self, engine: Engine, name: Naming, hold: str | None, options: Options, entries: Entries) -> None:
        self._engine = engine
        self._name = name
        self._hold = hold
        self._options = options
        self._entries = entries

    def __call__(self, function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        """Return the function under its lock.

        Raises:
            TypeError: it is no coroutine function, or has no parameter for the hold.
            ValueError: the name's template does not fit the function's arguments.
        """
        require_coroutine_function(function)
        naming = CallName(self._name, function, self._hold)

        @functools.wraps(function)
        async def locked(*args: P.args, **kwargs: P.kwargs) -> T:
            naming.refuse_hold(kwargs)
            async with self._lock(naming.of(args, kwargs)) as hold:
                naming.put_hold(kwargs, hold)
                return await function(*args, **kwargs)

        return locked

    def _lock(self, name: str) -> AsyncRLock:
        return AsyncRLock(self._engine, name, self._options, self._entries)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r}>"


class Synchronized(Facade[AsyncSynchronized]):
    """A decorator for functions: each call runs under a re-entrant lock, named by its arguments.

    Example:
        ```python
        @client.synchronized("order:{order_id}", timeout=5)
        def ship(order_id):
            return f"shipped {order_id}"

        ship(7)
        ```
    """

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        """Return the function under its lock.

        Raises:
            TypeError: it is a coroutine function, or has no parameter for the hold.
            ValueError: the name's template does not fit the function's arguments.
        """
        require_function(function)
        refuse_coroutines(function)
        naming = CallName(self._core._name, function, self._core._hold)

        @functools.wraps(function)
        def locked(*args: P.args, **kwargs: P.kwargs) -> T:
            naming.refuse_hold(kwargs)
            with RLock(self._core._lock(naming.of(args, kwargs))) as hold:
                naming.put_hold(kwargs, hold)
                return refuse_returned_coroutine(function(*args, **kwargs), function)

        return locked


ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+>")
"""In the text of an object that has none of its own: different in each process, so it names nothing."""


class Template:
    """A format string over the arguments of one function."""

    def __init__(self, text: str, signature: inspect.Signature, where: str) -> None:
        self._text = text
        self._signature = signature
        try:
            parts = list(string.Formatter().parse(text))
        except ValueError as error:
            raise ValueError(f"the name {text!r} is no format string: {error}") from None
        fields = [index for index, part in enumerate(parts) if part[1] is not None]
        self._parts: list[tuple[str, str | None, str, str | None, str]] = []  # the last: what a field must not run into
        for index, (literal, field, spec, conversion) in enumerate(parts):
            following = ""
            if field is not None:
                self._check(field, spec or "", conversion, where)
                if index != fields[-1]:
                    following = self._separator(parts[index + 1][0])
            self._parts.append((literal, field, spec or "", conversion, following))
        if not fields:
            _validate.name(self.render())

    def _check(self, field: str, spec: str, conversion: str | None, where: str) -> None:
        root = re.split(r"[.\[]", field, maxsplit=1)[0]
        if not root or root.isdecimal():
            raise ValueError(f"the name {self._text!r} has a field without a name; write the argument's: {{order_id}}")
        if root not in self._signature.parameters:
            known = ", ".join(self._signature.parameters) or "none"
            raise ValueError(f"{where} has no argument {root!r}, which the name {self._text!r} uses; it has: {known}")
        if "{" in spec or conversion not in (None, "r", "s", "a"):
            raise ValueError(f"the name {self._text!r} formats {field!r} in a way that is not supported; make it plain")

    def _separator(self, following: str) -> str:
        sign = following[:1]
        if not sign or sign.isalnum() or sign == "%":
            raise ValueError(f"the fields of the name {self._text!r} need a separator that is a sign, as {{a}}:{{b}}")
        return sign

    def render(self, /, *args: Any, **kwargs: Any) -> str:
        """Return the name for a call."""
        bound: Mapping[str, Any] = {}
        if any(part[1] is not None for part in self._parts):
            call = self._signature.bind(*args, **kwargs)
            call.apply_defaults()
            bound = call.arguments
        formatter = string.Formatter()
        pieces: list[str] = []
        for literal, field, spec, conversion, following in self._parts:
            pieces.append(literal)
            if field is not None:
                value, _ = formatter.get_field(field, (), bound)
                text = format(formatter.convert_field(value, conversion), spec)
                pieces.append(_fenced(_own(text, field), following))
        return "".join(pieces)


def _own(text: str, field: str) -> str:
    if ADDRESS.search(text):
        raise TypeError(
            f"the argument {field!r} has no text of its own, only an address, which differs in each process; "
            f"name what identifies it, as {{{field}.id}}"
        )
    return text


def _fenced(text: str, following: str) -> str:
    """Encode the character that ends the field, and the sign of the encoding."""
    if not following:
        return text
    return re.sub(f"[%{re.escape(following)}]", lambda found: "".join(f"%{b:02X}" for b in found[0].encode()), text)


class CallName:
    """The name of the lock for each call of one function, and the argument that receives the hold."""

    def __init__(self, name: Naming, function: Callable[..., Any], hold: str | None) -> None:
        signature, where = inspect.signature(function), function_name(function)
        self._hold = hold
        self._name_of: Callable[..., str]
        if isinstance(name, str):
            own = [parameter for parameter in signature.parameters.values() if parameter.name != hold]
            self._name_of = Template(_validate.name(name), signature.replace(parameters=own), where).render
        elif callable(name):
            self._name_of = name
        else:
            raise TypeError(f"the name must be a str or a function that returns one, not {type(name).__name__}")
        if hold is not None:
            parameter = signature.parameters.get(hold)
            if parameter is None or parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
                raise TypeError(
                    f"{where} needs a keyword-only argument {hold!r} to get the hold: (..., *, {hold}=None)"
                )

    def of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Return the name of the lock for a call."""
        return _validate.name(self._name_of(*args, **kwargs))

    def put_hold(self, kwargs: dict[str, Any], hold: object) -> None:
        """Add the hold to the arguments, if the function has a parameter for it."""
        if self._hold is not None:
            kwargs[self._hold] = hold

    def refuse_hold(self, kwargs: Mapping[str, Any]) -> None:
        """Raise TypeError for a call that passes the argument of the hold itself."""
        if self._hold in kwargs:
            raise TypeError(f"the argument {self._hold!r} is the hold, which the decorator passes; leave it out")
