"""Names of locks as templates: ``order:{order_id}``, filled from a mapping or from the arguments of a function.

The rules are those of `leasehold.Client.synchronized`: different values give different names, and where a template has
several fields they need a separator, which is percent-encoded in their values. Besides, a value must identify
something: text that is not empty, a number without a fraction, a UUID, a date, an enum member. None, a float or a list
as part of a name is a mistake of the caller, and would put unrelated work under one lock.

Example:
    ```python
    template = NameTemplate("order:{order_id}")
    assert template.fields == ("order_id",)
    assert template.render({"order_id": 7}) == "order:7"
    ```
"""

from __future__ import annotations

import enum
import inspect
import keyword
import re
import string
import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import date
from decimal import Decimal
from typing import Any

from leasehold import _validate
from leasehold.primitives.bases import function_name
from leasehold.primitives.calls.synchronized import Template

IDENTIFYING = (str, int, uuid.UUID, date, Decimal, enum.Enum)
"""Types of values that a name may contain; a datetime is a date, too."""


class NameTemplate:
    """The name of a lock, with fields in it.

    Args:
        text: the name, as ``order:{order_id}`` or ``user:{order.user.id}``; without fields it is one name for all.

    Raises:
        TypeError: ``text`` is no str.
        ValueError: it is no format string, a field has no name, or two fields have no separator between them.
    """

    def __init__(self, text: str) -> None:
        self.text = _validate.name(text)
        self._paths = _paths(text)
        self.fields = tuple(dict.fromkeys(re.split(r"[.\[]", path, maxsplit=1)[0] for path in self._paths))
        for field in self.fields:
            if not field.isidentifier() or keyword.iskeyword(field):
                raise ValueError(f"the name {text!r} has the field {field!r}; write an argument's name: {{order_id}}")
        signature = inspect.Signature([inspect.Parameter(each, inspect.Parameter.KEYWORD_ONLY) for each in self.fields])
        self._template = Template(text, signature, "the name")

    def render(self, values: Mapping[str, Any]) -> str:
        """Return the name for these values; those that it does not use are ignored.

        Raises:
            ValueError: a value is missing or empty, or the name gets too long.
            TypeError: a value identifies nothing: None, a float, a list.
        """
        missing = [field for field in self.fields if field not in values]
        if missing:
            known = ", ".join(values) or "none"
            raise ValueError(f"the name {self.text!r} needs {', '.join(missing)}; there are: {known}")
        used = {field: values[field] for field in self.fields}
        for path in self._paths:
            self._check(path, used)
        return _validate.name(self._template.render(**used))

    def for_function(self, function: Callable[..., Any], *, without: Iterable[str] = ()) -> Callable[..., str]:
        """Return what is called with the function's arguments, and returns the name.

        Args:
            function: its signature gives the values their names, and the defaults.
            without: parameters that its callers do not pass, as the context that a framework adds in front.

        Raises:
            ValueError: the function has no argument of a field's name.
        """
        left_out = {*without}
        parameters = [each for each in inspect.signature(function).parameters.values() if each.name not in left_out]
        signature = inspect.Signature(parameters)
        for field in self.fields:
            if field not in signature.parameters:
                known = ", ".join(signature.parameters) or "none"
                raise ValueError(
                    f"{function_name(function)} has no argument {field!r}, which the name {self.text!r} uses; "
                    f"it has: {known}"
                )

        def name_of(*args: Any, **kwargs: Any) -> str:
            if not self.fields:
                return self.text
            call = signature.bind(*args, **kwargs)
            call.apply_defaults()
            return self.render(call.arguments)

        return name_of

    def _check(self, path: str, values: Mapping[str, Any]) -> None:
        value, _ = string.Formatter().get_field(path, (), values)
        if not isinstance(value, IDENTIFYING):
            raise TypeError(
                f"{path!r} of the name {self.text!r} must be a str, int, UUID, date or Enum, not "
                f"{type(value).__name__}; pass what identifies it"
            )
        if value == "":
            raise ValueError(f"{path!r} of the name {self.text!r} is empty; pass what identifies it")

    def __repr__(self) -> str:
        return f"<NameTemplate {self.text!r}>"


def _paths(text: str) -> tuple[str, ...]:
    """Return the fields as they are written, as ``order.user.id``."""
    try:
        return tuple(field for _, field, _, _ in string.Formatter().parse(text) if field is not None)
    except ValueError as error:
        raise ValueError(f"the name {text!r} is no format string: {error}") from None
