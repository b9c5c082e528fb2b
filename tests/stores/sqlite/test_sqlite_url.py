"""URLs of the SQLite store, and what they open."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from leasehold import Client, StoreRefused
from leasehold.stores import registry
from leasehold.stores.sqlite import SQLite


def opened(url: str | None) -> Path:
    opener = registry.opener(url)
    assert isinstance(opener, SQLite)
    return opener.path


def test_url_forms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/someone")
    assert opened("sqlite:/var/lib/locks.db") == Path("/var/lib/locks.db")
    assert opened("sqlite:///var/lib/locks.db") == Path("/var/lib/locks.db")
    assert opened("sqlite:locks.db") == tmp_path / "locks.db"
    assert opened("sqlite:sub/../locks.db") == tmp_path / "locks.db"
    assert opened("sqlite:~/locks.db") == Path("/home/someone/locks.db")
    assert opened("sqlite:/with%20space/%23.db") == Path("/with space/#.db")
    monkeypatch.delenv("LEASEHOLD_URL", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", "/a state/50% #1?")
    assert opened(None) == Path("/a state/50% #1?/leasehold/locks.db")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("sqlite:", "names no file; write sqlite:/path/locks.db"),
        ("sqlite:///", "names no file"),
        ("sqlite:/tmp/", "names no file"),
        ("sqlite:.", "names no file"),
        ("sqlite:/a%00b", "control characters"),
        ("sqlite::memory:", "write memory:"),
        ("sqlite://host/path.db", "no host"),
        ("sqlite:/a.db?mode=ro", "unknown option 'mode'"),
        ("sqlite:/a.db?allow_network=maybe", "1 or 0"),
    ],
)
def test_url_refused(url: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        registry.opener(url)


def test_a_default_folder_that_is_not_utf_8_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEASEHOLD_URL", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", os.fsdecode(b"/state/\xff"))
    with pytest.raises(
        ValueError, match=r"'/state/\\udcff/leasehold/locks.db'.* is not UTF-8; .*LEASEHOLD_URL"
    ) as caught:
        Client.from_url()
    assert not isinstance(caught.value, UnicodeError)
    assert str(caught.value).isprintable()


def test_without_a_home_directory_the_default_file_is_refused_and_others_are_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A container may run as a user without an entry in /etc/passwd."""

    def unknown(number: int) -> None:
        raise KeyError(number)

    for name in ("HOME", "LEASEHOLD_URL", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    with pytest.raises(ValueError, match=r"no home directory .*; set LEASEHOLD_URL"):
        Client.from_url()
    with pytest.raises(ValueError, match="names no file"):
        Client.from_url("sqlite:")
    monkeypatch.chdir(tmp_path)  # each working directory would have a file of its own, and two processes hold one lock
    with pytest.raises(ValueError, match=r"no home directory for '~/\.local/.*'; write an absolute path, or set HOME"):
        Client.from_url("sqlite:~/.local/state/leasehold/locks.db")
    assert not Path("~").exists()
    with Client.from_url(f"sqlite:{tmp_path}/none/locks.db") as client, pytest.raises(StoreRefused, match="the folder"):
        client.lock("a").acquire()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with Client.from_url() as client, client.lock("a"):
        pass


def test_a_state_folder_may_begin_with_the_home_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A Dockerfile or a unit file does not expand the ``~`` of a variable."""
    monkeypatch.delenv("LEASEHOLD_URL", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", "~/state")
    with Client.from_url() as client, client.lock("a"):
        assert (tmp_path / "state" / "leasehold" / "locks.db").exists()


def test_the_file_is_not_opened_before_the_first_use(tmp_path: Path) -> None:
    with Client.from_url(f"sqlite:{tmp_path}/a/b/locks.db"):
        assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("named", [True, False], ids=["named", "default"])
def test_the_file_and_its_default_folder_are_made_for_their_owner_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    monkeypatch.delenv("LEASEHOLD_URL", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "a"))
    path = tmp_path / "a" / "leasehold" / "locks.db"
    umask = os.umask(0)
    try:
        with Client.from_url(f"sqlite:{path}" if named else None) as locks, locks.lock("x"):
            for file in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
                assert file.stat().st_mode & 0o777 == 0o600
            for folder in (path.parent, path.parent.parent):
                assert folder.stat().st_mode & 0o777 == 0o700
    finally:
        os.umask(umask)


def test_literal_prefix(locks: Client) -> None:
    names = ["a%b", "a_b", "axb", "a", "A", "a\0b", "a\U0010ffff", "b", "ä", "%"]
    with contextlib.ExitStack() as stack:
        for name in names:
            stack.enter_context(locks.lock(name))

        def found(prefix: str) -> list[str]:
            return [info.name for info in locks.holds(prefix)]

        assert found("") == sorted(names)
        assert found("a%") == ["a%b"]
        assert found("a_") == ["a_b"]
        assert found("a\0") == ["a\0b"]
        assert found("a\U0010ffff") == ["a\U0010ffff"]
        assert found("a") == sorted(name for name in names if name.startswith("a"))
        info = locks.inspect("a")
        assert info is not None
        assert info.name == "a"
        assert locks.inspect("a\0") is None
    assert locks.holds() == []


def test_namespaces_are_separate(path: Path, locks: Client) -> None:
    with Client.from_url(f"sqlite:{path}", namespace="other") as others, locks.lock("x"), others.lock("x", timeout=0):
        assert len(others.holds()) == 1
