"""What users download: the page on a package index, the contents of the wheels, and a first lock after an install."""

from __future__ import annotations

import os
import re
import sys
import tarfile
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

from building import TOP, Distribution, environment, pip, run

LARGEST = {"core": 600 * 1024, "all": 960 * 1024}
"""Bytes in the wheel at most: of what every application may import, and with what is imported only when asked for."""

FRAMEWORKS = (
    "leasehold/_pytest_plugin.py",
    "leasehold/_runtimes/manual.py",
    "leasehold/postgres.py",
    "leasehold/tables.py",
    "leasehold/testing.py",
    "leasehold/guards/",
    "leasehold/integrations/",
    "leasehold/layouts/",
    "leasehold/stores/hazelcast/",
    "leasehold/observability/",
    "leasehold/ui/",
    "leasehold/cli/",
    "leasehold/stores/_sql/session/",
    *(f"leasehold/stores/{store}/session.py" for store in ("mysql", "postgres")),
    "leasehold/stores/etcd/guarded.py",
    "leasehold/stores/redis/doctor/",
    *(f"leasehold/stores/{store}/{part}.sql" for store in ("mysql", "postgres") for part in ("schema", "upgrade")),
    *(f"leasehold/stores/{store}/doctor.py" for store in ("etcd", "mysql", "postgres", "sqlite", "zookeeper")),
)
"""What is used only with a framework, by a command, by tests, for another library's format, to check tokens, or with
``mode=session``.

Hazelcast's store is such a format: it has none of its own, its locks are Java's ``FencedLock``.
"""

ADDRESS = "https://github.com/leasehold/leasehold"
PICTURES = "https://raw.githubusercontent.com/leasehold/leasehold"

FOREIGN = {".go", ".mod", ".sum", ".java", ".jar", ".class"}
"""Endings of files in Go and Java, with which only the laboratory compares."""

LABORATORY = {"bench", "conformance", "demo", "history", "models", "servers", "simulated", "tests", "verify"}
"""Names of folders and modules that belong to the laboratory or to the tests of the project."""

# --- the page on a package index -----------------------------------------------------------------------------------


def test_the_index_page_has_only_absolute_links_and_each_target_exists(library: Distribution) -> None:
    metadata = metadata_of(library.wheel)
    page, tag = str(metadata.get_payload()), f"v{metadata['Version']}"
    assert metadata["Description-Content-Type"] == "text/markdown"
    targets = re.findall(r"\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"", without_code(page))
    links = [one or other for one, other in targets]
    assert links
    for link in links:
        assert link.startswith(("https://", "mailto:", "#")), f"{link} works in the repository only"
        if found := re.match(rf"{ADDRESS}/blob/{tag}/([^#]+)", link):
            assert (TOP / found[1]).exists(), link


def test_pictures_of_the_index_page_are_raw_files(library: Distribution) -> None:
    metadata = metadata_of(library.wheel)
    pictures = re.findall(r"!\[[^\]]*\]\(([^)\s]+)\)", str(metadata.get_payload()))
    assert pictures
    for picture in pictures:
        found = re.match(
            rf"https://raw\.githubusercontent\.com/leasehold/leasehold/v{metadata['Version']}/(.+)", picture
        )
        assert found is not None, f"{picture} is not shown on a package index"
        assert (TOP / found[1]).is_file(), picture


def test_the_index_page_is_the_readme_but_for_its_links(library: Distribution) -> None:
    page = str(metadata_of(library.wheel).get_payload())
    readme = (TOP / "README.md").read_text(encoding="utf-8")
    assert without_targets(page).strip() == without_targets(readme).strip()


def test_the_metadata_names_the_addresses_of_the_project(library: Distribution) -> None:
    urls = dict(line.split(", ", 1) for line in metadata_of(library.wheel).get_all("Project-URL", []))
    assert urls.keys() == {"Homepage", "Documentation", "Changelog", "Issues"}
    for label, url in urls.items():
        assert url.startswith(ADDRESS), url
        if found := re.search(r"/(?:blob|tree)/main/(.+)", url):
            assert (TOP / found[1]).exists(), f"{label} leads to {url}"


# --- what is inside ------------------------------------------------------------------------------------------------


def test_the_wheel_has_the_files_that_are_not_python(library: Distribution) -> None:
    names = set(zipfile.ZipFile(library.wheel).namelist())
    package = TOP / "src" / "leasehold"
    data = [path for path in package.rglob("*") if path.suffix in (".lua", ".sql", ".typed", ".html")]
    assert data
    assert {str(path.relative_to(package.parent)) for path in data} <= names


def test_the_wheel_is_small(library: Distribution) -> None:
    size = {"core": 0.0, "all": 0.0}
    files = zipfile.ZipFile(library.wheel).infolist()
    records = next(file.compress_size for file in files if file.filename.endswith("/RECORD"))  # a line for each file
    for file in files:
        entries = 2 * (len(file.filename) + 38)  # in the archive's directories
        its = entries + records / len(files) + file.compress_size * (not file.filename.endswith("/RECORD"))
        size["all"] += its
        size["core"] += its * (not file.filename.startswith(FRAMEWORKS))
    assert size["core"] <= LARGEST["core"]
    assert size["all"] <= LARGEST["all"]


def test_the_wheel_has_no_laboratory_and_no_foreign_program(library: Distribution) -> None:
    paths = [Path(name) for name in zipfile.ZipFile(library.wheel).namelist()]
    assert [path for path in paths if path.suffix in FOREIGN] == []
    found = {str(path) for path in paths if LABORATORY & {Path(part).stem for part in path.parts}}
    assert found == {
        "leasehold/observability/history.py",  # which is no checker of histories
        "leasehold/integrations/django/models.py",  # which Django wants to have this name
    }


def test_the_wheel_has_no_tests(library: Distribution) -> None:
    names = zipfile.ZipFile(library.wheel).namelist()
    assert [name for name in names if re.search(r"(^|/)(tests/|conftest\.py|test_\w+\.py)", name)] == []


def test_the_source_archive_has_what_a_contributor_reads(library: Distribution) -> None:
    with tarfile.open(library.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE", "pyproject.toml", "try"} <= names
    assert "tests/conftest.py" in names


def test_the_tests_environment_has_what_builds_the_project() -> None:
    project = tomllib.loads((TOP / "pyproject.toml").read_text(encoding="utf-8"))
    assert set(project["build-system"]["requires"]) <= set(project["dependency-groups"]["dev"])


# --- after an install ----------------------------------------------------------------------------------------------


def test_the_first_lock_of_the_readme_runs_in_an_empty_environment(library: Distribution, tmp_path: Path) -> None:
    python = installed(tmp_path, library)
    first = next((code for code in python_blocks(TOP / "README.md") if "from_url()" in code), None)
    assert first is not None, "the README shows no lock that needs no server: Client.from_url()"
    said = isolated(python, first, tmp_path)
    assert "token" in said
    where = isolated(python, "import leasehold; print(leasehold.__file__)", tmp_path)
    assert where.startswith(str(tmp_path)), "it ran on the repository and not on the wheel"


def test_a_missing_driver_is_named_with_its_install_line(library: Distribution, tmp_path: Path) -> None:
    python = installed(tmp_path, library)
    code = """
from leasehold import Client, MissingDriver
for url in (
    "redis://localhost", "postgresql://localhost/app", "mysql://app@localhost/app", "etcd://localhost",
    "zookeeper://localhost", "hazelcast://localhost",
):
    try:
        Client.from_url(url)
    except MissingDriver as error:
        print(error)
"""
    said = isolated(python, code, tmp_path)
    assert re.findall(r"leasehold\[(\w+)\]", said) == [
        "redis",
        "postgres",
        "mysql",
        "etcd",
        "zookeeper",
        "hazelcast",
    ], said


def test_the_laboratory_installs_beside_the_library(
    library: Distribution, laboratory: Distribution, tmp_path: Path
) -> None:
    python = installed(tmp_path, library, laboratory)
    where = isolated(python, "import leasehold_lab; print(leasehold_lab.__file__)", tmp_path)
    assert where.startswith(str(tmp_path)), "it ran on the repository and not on the wheel"
    pip(python, "check")


# --- helpers -------------------------------------------------------------------------------------------------------


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return Parser().parsestr(archive.read(name).decode())


def without_code(text: str) -> str:
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def without_targets(text: str) -> str:
    return re.sub(r"\]\([^)\s]+\)", "]()", text)


def python_blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def installed(folder: Path, *distributions: Distribution) -> Path:
    """Make a virtual environment with nothing but these, and return its Python.

    Only the laboratory needs packages of the index; the library has no dependency.
    """
    wheels = [str(distribution.wheel) for distribution in distributions]
    return environment(folder / "env", *wheels, offline=len(distributions) == 1)


def isolated(python: Path, code: str, home: Path) -> str:
    """Run code that sees neither the repository nor the user's own files."""
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "XDG_STATE_HOME": str(home / "state")}
    assert str(python) != sys.executable
    return run(str(python), "-I", "-W", "error", "-c", code, cwd=home, env=env)
