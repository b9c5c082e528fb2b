"""A layout in a URL: what is refused when a client or a lock is made, with the reason and the remedy."""

from __future__ import annotations

import subprocess
import sys

import pytest
from layout_keys import url_of

from leasehold import Client, Unsupported
from leasehold.layouts.redis import LAYOUTS
from leasehold.stores import registry
from leasehold.stores.registry import BUILT_IN
from leasehold.stores.registry import LAYOUTS as SCHEMES

layouts = pytest.mark.parametrize("layout", LAYOUTS)


def test_an_unknown_layout_is_refused():
    with pytest.raises(ValueError, match=r"unknown layout 'plane' in the redis URL; known are: plain"):
        Client.from_url("redis://localhost?layout=plane")


def test_an_unknown_option_of_a_layout_is_refused():
    with pytest.raises(ValueError, match="unknown option 'prefixes' in the redis URL"):
        Client.from_url("redis://localhost?layout=plain&prefixes=a")


def test_an_option_of_a_layout_needs_the_layout():
    with pytest.raises(ValueError, match="unknown option 'prefix' in the redis URL"):
        Client.from_url("redis://localhost?prefix=a")


@pytest.mark.parametrize("url", ["sqlite:locks.db?layout=plain", "postgresql://localhost/a?layout=plain"])
def test_other_stores_have_no_such_layout(url):
    with pytest.raises(ValueError, match="layout"):
        Client.from_url(url)


@layouts
@pytest.mark.parametrize("option", ["strict=true", "longest_lease=30", "quarantine=60"])
def test_strict_mode_is_refused(layout, option):
    with pytest.raises(
        Unsupported, match=r"no strict mode .* would not keep to them; leave .* out, or leave out layout"
    ):
        Client.from_url(f"redis://localhost?layout={layout}&{option}")


@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if layout != "plain"])
def test_independent_primaries_are_refused(layout):
    with pytest.raises(
        Unsupported, match=r"works on one Redis server and on the primary under Sentinel, not with \w+;"
    ):
        Client.from_url(url_of("redlock://a,b,c", layout))


@layouts
@pytest.mark.parametrize("url", ["redis://a", "rediss://a", "unix:///a", "valkey://a", "redis+sentinel://a/b"])
def test_one_primary_is_taken(layout, url):
    Client.from_url(url_of(url, layout)).close()


@pytest.mark.parametrize("url", ["redlock://a,b,c?", "redlocks://a,b,c?", "redlock:redis://a|rediss://b|unix:///c|?"])
def test_a_quorum_is_taken_with_plain_keys(url):
    with Client.from_url(f"{url}layout=plain&prefix=a") as locks:
        assert repr(locks.store).startswith("<PlainRedlockStore ")
        with pytest.raises(Unsupported, match=r"cannot promise a lock delay .* the programs that share its key"):
            locks.lock("a", lock_delay=1)
    with pytest.raises(Unsupported, match="no quarantine: the programs that share its locks would not keep to them"):
        Client.from_url(f"{url}layout=plain&quarantine=60")


def test_each_scheme_of_redis_has_layouts():
    of_redis = {scheme for scheme, module in BUILT_IN.items() if "redis" in module}
    assert of_redis == {scheme for scheme, module in SCHEMES.items() if "redis" in module}


def test_spring_needs_a_registry():
    with pytest.raises(ValueError, match="layout=spring needs registry=NAME in the URL: the registryKey"):
        Client.from_url("redis://localhost?layout=spring")


def test_shedlock_on_redis_is_refused():
    with pytest.raises(Unsupported, match=r"deletes the key without looking whose it is, .* MySQL instead"):
        Client.from_url("redis://localhost?layout=shedlock")


# --- database servers --------------------------------------------------------------------------------------------

databases = pytest.mark.parametrize("database", ["postgresql://localhost/a", "mysql://me@localhost/a"])


def test_each_scheme_of_these_servers_has_layouts():
    of_servers = {scheme for scheme, module in BUILT_IN.items() if module.endswith(("postgres", "mysql"))}
    assert of_servers == {scheme for scheme, module in SCHEMES.items() if ".sql." in module}


WRONG = {
    "layout=plain": "unknown layout 'plain' in the .* URL; known are: spring, shedlock, medallion",
    "layout=medallion&mode=session&region=a": "unknown option 'region' in the .* URL",
    "layout=spring&table=a": "unknown option 'table' in the .* URL",
    "layout=shedlock&region=a": "unknown option 'region' in the .* URL",
    "layout=spring&prefix=a b": "white space",
    "layout=spring&prefix=a;b": "option 'prefix' of layout=spring begins the name of a table, as INT_ or app.INT_",
    "layout=spring&region=": "option 'region' of layout=spring has 1 to 100 characters",
    "layout=spring&margin=-1": "option 'margin' of layout=spring is a number of seconds, as 1 or 0.5",
    "layout=shedlock&table=a-b": "option 'table' of layout=shedlock is the name of a table, as shedlock",
}


@databases
@pytest.mark.parametrize("options", WRONG)
def test_a_wrong_option_is_named(database, options):
    with pytest.raises(ValueError, match=WRONG[options]):
        Client.from_url(f"{database}?{options}")


@databases
@pytest.mark.parametrize("layout", ["spring", "shedlock"])
def test_a_mode_is_refused(database, layout):
    with pytest.raises(Unsupported, match=f"layout={layout} has no mode=: .* leave mode= out, or leave out layout="):
        Client.from_url(f"{database}?layout={layout}&mode=session")


@databases
@pytest.mark.parametrize("mode", ["", "&mode=rows"])
def test_medallion_needs_its_mode(database, mode):
    with pytest.raises(Unsupported, match="layout=medallion needs mode=session in the URL: Medallion's locks are"):
        Client.from_url(f"{database}?layout=medallion{mode}")
    Client.from_url(f"{database}?layout=medallion&mode=session").close()


@databases
@pytest.mark.parametrize("what", ["fair order", "a lock delay", "shared locks", "permits"])
def test_what_a_row_of_spring_cannot_carry_is_refused_when_the_lock_is_made(database, what):
    reason = (
        f"<SharedRowStore spring .* cannot promise .*{what}.*; the rows of Spring's JdbcLockRegistry .* leave it out"
    )
    with Client.from_url(f"{database}?layout=spring") as locks, pytest.raises(Unsupported, match=reason):
        WHAT[what](locks)


@databases
@pytest.mark.parametrize("what", ["latch", "barrier", "election", "versioned"])
def test_values_are_refused_on_rows(database, what):
    with Client.from_url(f"{database}?layout=spring") as locks, pytest.raises(Unsupported, match="layout=spring"):
        VALUES[what](locks)


WHAT = {
    "fair order": lambda locks: locks.lock("a", fair=True),
    "a lock delay": lambda locks: locks.lock("a", lock_delay=1),
    "shared locks": lambda locks: locks.rw_lock("a").reader(),
    "permits": lambda locks: locks.semaphore("a", 3),
}

VALUES = {
    "latch": lambda locks: locks.latch("a", 1),
    "barrier": lambda locks: locks.barrier("a", 2),
    "election": lambda locks: locks.election("a"),
    "versioned": lambda locks: locks.versioned("a"),
}


@pytest.mark.parametrize("what", WHAT)
def test_what_a_plain_key_cannot_carry_is_refused_when_the_lock_is_made(what):
    reason = f"<LayoutStore plain .* cannot promise .*{what}.*; the programs that share its key .* leave it out, or"
    with Client.from_url("redis://localhost?layout=plain") as locks, pytest.raises(Unsupported, match=reason):
        WHAT[what](locks)


@layouts
@pytest.mark.parametrize("what", VALUES)
def test_values_are_refused(layout, what):
    with Client.from_url(url_of("redis://localhost", layout)) as locks, pytest.raises(Unsupported, match="layout"):
        VALUES[what](locks)


def test_without_a_layout_nothing_of_layouts_is_imported():
    code = "import sys; from leasehold import Client; Client.from_url('redis://localhost').close(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "leasehold.stores.redis.store" in done.stdout.split()
    assert not [name for name in done.stdout.split() if name.startswith("leasehold.layouts")]


def test_no_password_is_shown():
    for url in ("redis://user:secret@localhost?layout=plain", "mysql://user:secret@localhost/a?layout=spring"):
        assert "secret" not in repr(registry.opener(url))
