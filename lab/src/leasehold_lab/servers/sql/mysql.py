"""The differences of a MySQL test server from a MariaDB one: its data folder, and settings of a small server."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from leasehold_lab.servers.base import Account, change_owner

SMALL: Mapping[str, str] = {
    "innodb-buffer-pool-size": "32M",
    "innodb-redo-log-capacity": "8M",
    "innodb-buffer-pool-dump-at-shutdown": "0",
    "innodb-buffer-pool-load-at-startup": "0",
    "performance-schema": "OFF",
    "mysqlx": "OFF",
    "secure-file-priv": "NULL",
}
"""Settings of a server that starts fast and is small. Its binary log is off unless ``log-bin`` is set."""

ADMINISTRATOR = (
    "CREATE USER IF NOT EXISTS 'root'@'127.0.0.1'",
    "GRANT ALL ON *.* TO 'root'@'127.0.0.1' WITH GRANT OPTION",
)
"""A fresh server lets ``root`` log in by the Unix socket only."""

_templates: dict[tuple[int, str], Path] = {}


def template(binary: str, account: Account | None) -> Path:
    """Return a folder of data that was never used, made once for each process: making it takes many seconds."""
    key = (os.getpid(), binary)
    if key not in _templates:
        folder = Path(tempfile.mkdtemp(prefix="leasehold-mysql-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        if account is not None:
            change_owner(folder, account)
        uid, gid = account or (None, None)
        groups: Sequence[int] | None = None if account is None else ()
        command = [binary, "--no-defaults", "--initialize-insecure", f"--datadir={folder / 'data'}"]
        command += [f"--tmpdir={folder}", f"--innodb-redo-log-capacity={SMALL['innodb-redo-log-capacity']}"]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, cwd=folder, user=uid,
            group=gid, extra_groups=groups,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{binary} --initialize-insecure failed: {(done.stderr or done.stdout)[-1000:]}")
        _templates[key] = folder / "data"
    return _templates[key]
