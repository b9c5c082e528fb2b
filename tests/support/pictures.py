"""Where the tests put pictures of what users see."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

LARGEST_PICTURE = 150 * 1024


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """The folder for pictures of the documentation.

    With ``LEASEHOLD_PICTURES=docs/integrations/images`` in the environment the documentation gets them.
    """
    folder = Path(os.environ.get("LEASEHOLD_PICTURES") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    return folder
