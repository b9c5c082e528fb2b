"""Templates of integrations: mistakes are refused before anything is sent; different values never share a name."""

from __future__ import annotations

import enum
import uuid
from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest

from leasehold.integrations._common.names import NameTemplate


@dataclass
class Order:
    id: Any


class Region(enum.Enum):
    EU = "eu"


def ship(order_id: Any, to: str = "here", *, fast: bool = False, **more: Any) -> None: ...


@pytest.mark.parametrize(
    ("text", "values", "name"),
    [
        ("nightly", {}, "nightly"),
        ("order:{order_id}", {"order_id": 7, "other": None}, "order:7"),
        ("order:{order.id}", {"order": Order("x")}, "order:x"),
        ("{a}:{b}", {"a": "x:y", "b": "z"}, "x%3Ay:z"),
        ("{day}", {"day": date(2026, 3, 1)}, "2026-03-01"),
        ("{key}", {"key": uuid.UUID(int=7)}, str(uuid.UUID(int=7))),
        ("{where.value}", {"where": Region.EU}, "eu"),
        ("{order_id:05d}", {"order_id": 7}, "00007"),
        ("{{literal}}", {}, "{literal}"),
    ],
)
def test_values_make_the_name(text: str, values: dict[str, Any], name: str) -> None:
    assert NameTemplate(text).render(values) == name


def test_each_field_is_listed_once() -> None:
    assert NameTemplate("{user.id}/{order}/{user.name}").fields == ("user", "order")
    assert NameTemplate("plain").fields == ()


@pytest.mark.parametrize("text", ["", "order:{", "order:{}", "order:{0}", "{a}{b}", "{a b}", "{class}", "{a!x}"])
def test_a_template_that_cannot_work_is_refused_when_it_is_made(text: str) -> None:
    with pytest.raises(ValueError, match="name"):
        NameTemplate(text)


@pytest.mark.parametrize("value", [None, 1.5, [1], b"x", object()])
def test_a_value_that_identifies_nothing_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match=r"'order_id' of the name .* must be"):
        NameTemplate("order:{order_id}").render({"order_id": value})


def test_an_empty_a_missing_and_an_overlong_value_are_refused() -> None:
    template = NameTemplate("order:{order_id}")
    with pytest.raises(ValueError, match="is empty"):
        template.render({"order_id": ""})
    with pytest.raises(ValueError, match=r"needs order_id; there are: id"):
        template.render({"id": 7})
    with pytest.raises(ValueError, match="at most 512"):
        template.render({"order_id": "x" * 600})


def test_a_function_gives_the_names_of_its_arguments_and_their_defaults() -> None:
    name_of = NameTemplate("{order_id}/{to}/{fast}").for_function(ship)
    assert name_of(7) == name_of(order_id=7) == "7/here/False"
    assert name_of("a/b", "there", fast=True) == "a%2Fb/there/True"
    assert NameTemplate("all").for_function(ship)("any", "number", "of", "arguments") == "all"


def test_a_field_that_the_function_has_no_argument_for_is_refused_when_it_is_decorated() -> None:
    with pytest.raises(ValueError, match=r"ship has no argument 'order', .* it has: order_id, to, fast, more"):
        NameTemplate("order:{order}").for_function(ship)


def test_an_argument_that_the_framework_adds_is_left_out() -> None:
    def task(ctx: object, order_id: int) -> None: ...

    name_of = NameTemplate("order:{order_id}").for_function(task, without=["ctx"])
    assert name_of(7) == "order:7"
    with pytest.raises(ValueError, match="has no argument 'ctx'"):
        NameTemplate("{ctx}").for_function(task, without=["ctx"])
