"""A certificate authority for tests, which signs a certificate for a server on 127.0.0.1 and one for a client."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from leasehold_lab.servers.base import find_program

KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True, slots=True)
class Certificates:
    """Paths of PEM files: the authority, a server's certificate for 127.0.0.1 and localhost, a client's."""

    authority: Path
    server: Path
    server_key: Path
    client: Path
    client_key: Path

    @classmethod
    def make(cls, folder: Path) -> Certificates:
        """Make all of them in ``folder`` with the ``openssl`` program; they are valid for two days."""
        openssl = find_program(("openssl",), "openssl")
        authority, key = folder / "ca.pem", folder / "ca.key"
        subject = ("-x509", "-days", "2", "-subj", "/CN=leasehold test authority")
        _run(openssl, "req", *KEY, *subject, "-keyout", str(key), "-out", str(authority))
        for who in ("server", "client"):
            _sign(openssl, folder, who, authority, key)
        return cls(
            authority, folder / "server.pem", folder / "server.key", folder / "client.pem", folder / "client.key"
        )


def _sign(openssl: str, folder: Path, who: str, authority: Path, key: Path) -> None:
    request, extensions = folder / f"{who}.csr", folder / f"{who}.ext"
    extensions.write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    subject = ("-subj", f"/CN=leasehold test {who}")
    _run(openssl, "req", *KEY, *subject, "-keyout", str(folder / f"{who}.key"), "-out", str(request))
    by = ("-CA", str(authority), "-CAkey", str(key), "-CAcreateserial", "-days", "2", "-extfile", str(extensions))
    _run(openssl, "x509", "-req", "-in", str(request), "-out", str(folder / f"{who}.pem"), *by)


def _run(*command: str) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:2])} failed: {done.stderr[-1000:]}")
