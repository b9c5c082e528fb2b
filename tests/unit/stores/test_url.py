"""Store URLs: what is read, what is refused, and that no password is ever shown."""

import copy
import pickle
import traceback

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from leasehold._url import Secret, parse

SECRET = "s3cr3t-p4ss"


@pytest.mark.parametrize(
    ("text", "hosts", "path", "options"),
    [
        ("memory:", (), "", {}),
        ("memory:space", (), "space", {}),
        ("redis://localhost", (("localhost", None),), "", {}),
        ("redis://localhost:6380/3", (("localhost", 6380),), "3", {}),
        ("REDIS://localhost", (("localhost", None),), "", {}),
        ("redis://[::1]:6379", (("::1", 6379),), "", {}),
        ("redis://a:1,b:2,c", (("a", 1), ("b", 2), ("c", None)), "", {}),
        ("redis://h?a=1&b=", (("h", None),), "", {"a": "1", "b": ""}),
        ("redis://h?a=x+y&b=x%20y", (("h", None),), "", {"a": "x+y", "b": "x y"}),
        ("sqlite:/var/lib/my%20locks.db", (), "/var/lib/my locks.db", {}),
    ],
)
def test_what_is_read(text: str, hosts: object, path: str, options: dict[str, str]) -> None:
    url = parse(text)
    assert url.scheme == text.partition(":")[0].lower()
    assert url.hosts == hosts
    assert url.path == path
    assert dict(url.options) == options


def test_user_and_password_are_decoded() -> None:
    url = parse("redis://us%40er:p%2Fa%3Aß@h")
    assert url.username == "us@er"
    assert url.password is not None
    assert url.password.reveal() == "p/a:ß"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "localhost",
        "://localhost",
        "1redis://h",
        "re dis://h",
        "redis://h:port",
        "redis://h:0",
        "redis://h:65536",
        "redis://:6379",
        "redis://a,,b",
        "redis://h#fragment",
        "redis://h/ 0",
        "redis://h\n",
        "redis://h?novalue",
        "redis://[::1",
    ],
)
def test_malformed_urls_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"URL"):
        parse(text)


@pytest.mark.parametrize("value", [None, 5, b"redis://h"])
def test_a_url_that_is_not_a_text_raises_type_error(value: object) -> None:
    with pytest.raises(TypeError, match="must be a str"):
        parse(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        f"redis://user:{SECRET}@h:6379/0",
        f"redis://:{SECRET}@h",
        f"redis://user:{SECRET}@h:nonsense",
        f"redis://user:{SECRET}/x@h",
        f"redis://user:{SECRET}@h?oops",
        f"redis://user:{SECRET} @h",
        f"{SECRET}@h",
        f"redis://h?password={SECRET}",
    ],
)
def test_no_password_is_ever_shown(text: str) -> None:
    try:
        url = parse(text)
        shown = f"{url} {url!r} {url.password} {url.password!r} {[url]}"
    except ValueError as error:
        shown = "".join(traceback.format_exception_only(error)) + repr(error.__context__)
    assert SECRET not in shown


def test_a_secret_is_not_sent_elsewhere() -> None:
    secret = Secret(SECRET)
    assert SECRET not in f"{secret} {secret!r} {vars(type(secret))}"
    for attempt in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError):
            attempt(secret)


def test_an_unknown_option_names_the_known_ones() -> None:
    url = parse("redis://h?timeuot=3")
    with pytest.raises(ValueError, match=r"unknown option 'timeuot'.*known are: db, timeout"):
        url.refuse_options(("timeout", "db"))
    with pytest.raises(ValueError, match="this scheme has none"):
        url.refuse_options()
    parse("redis://h?db=3").refuse_options(("db",))


@given(st.text(max_size=60))
@example("redis://[")
@example("redis://h]:1")
@example("a:%")
@example("a://\udcff")
def test_any_text_is_parsed_or_refused_clearly(text: str) -> None:
    try:
        shown = repr(parse(text))  # anything but a ValueError fails the test
    except ValueError as error:
        shown = str(error)
    assert "URL" in shown
