"""A guarded file keeps its permissions when it is replaced."""

import stat
from pathlib import Path

import pytest

from leasehold.guards import file


@pytest.mark.parametrize("mode", [0o600, 0o664, 0o400])
def test_permissions_stay(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "token.json"
    path.write_bytes(b"secret")
    path.chmod(mode)
    file.write(path, b"new secret", token=5)
    assert path.read_bytes() == b"new secret"
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_a_new_file_has_the_usual_permissions(tmp_path: Path) -> None:
    usual, path = tmp_path / "usual", tmp_path / "new"
    usual.touch()
    file.write(path, b"first", token=5)
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(usual.stat().st_mode)
