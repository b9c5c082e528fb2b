"""With which options libpq tries the addresses that were looked up for it."""

from __future__ import annotations

import pytest

pytest.importorskip("psycopg")

from leasehold._url import parse
from leasehold.stores.postgres.connection.settings import from_url


@pytest.mark.parametrize("hosts", ["a", "a,b"])
def test_a_port_that_the_url_leaves_out_is_left_to_libpq(hosts: str) -> None:
    """It has one from PGPORT or a service file, but not if it is given an empty one."""
    names = hosts.split(",")
    found = from_url(parse(f"postgresql://{hosts}/d")).resolved([["10.0.0.1", "10.0.0.2"]] * len(names))
    doubled = ",".join(name for name in names for _ in range(2))
    assert found == {"host": doubled, "hostaddr": ",".join(["10.0.0.1,10.0.0.2"] * len(names))}


def test_a_port_belongs_to_each_address_of_its_host() -> None:
    found = from_url(parse("postgresql://a:1,b/d")).resolved([["10.0.0.1", "10.0.0.2"], ["10.0.0.3"]])
    assert found == {"host": "a,a,b", "port": "1,1,5432", "hostaddr": "10.0.0.1,10.0.0.2,10.0.0.3"}
