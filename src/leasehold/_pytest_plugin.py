"""The pytest plug-in: the fixture ``locks``. Nothing of leasehold is imported before a test asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from leasehold.testing import TestClient


@pytest.fixture
def locks() -> Iterator[TestClient]:
    """Locks in a private store in memory, with a clock to move: a `leasehold.testing.TestClient`."""
    from leasehold.testing import TestClient

    with TestClient() as client:
        yield client
