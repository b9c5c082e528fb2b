"""``leasehold ui``: the console in a browser, served by this command."""

from __future__ import annotations

import ipaddress
import os
import secrets
import socket
from importlib.util import find_spec
from pathlib import Path

import click

from leasehold.cli.options import DURATIONS, Duration, Exit, Failed, store_options
from leasehold.cli.store import silence_logging

TOKEN = "LEASEHOLD_UI_TOKEN"
PORT = 8470
NAMES = ("localhost", "127.0.0.1", "::1")


@click.command(epilog=DURATIONS)
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen; beyond loopback, with a token.")
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="0 for a free one.")
@click.option("--allow-break", is_flag=True, help="Pages can break locks. Without it they only show.")
@click.option("--every", type=Duration(0.1, 3600), default=0.5, show_default=True, help="Pause between two looks.")
@click.option("--prefix", default="", metavar="PATH", help="Serve below PATH, for a proxy that does not cut it off.")
@click.option("--audit-log", type=click.Path(dir_okay=False), metavar="FILE", help="Append each break to FILE.")
@store_options
def ui(
    host: str,
    port: int,
    allow_break: bool,
    every: float,
    prefix: str,
    audit_log: str | None,
    url: str | None,
    namespace: str,
) -> None:
    """Show the locks in a browser, live, until Ctrl-C.

    With LEASEHOLD_UI_TOKEN in the environment pages ask for this token. On loopback it may be left out; then every user
    of this machine can see the pages, and with --allow-break break locks.
    """
    if missing := [name for name in ("starlette", "uvicorn") if find_spec(name) is None]:
        raise Failed(f"{missing[0]} is not installed; install it with: pip install 'leasehold[ui]'", Exit.MISSING)
    token = os.environ.get(TOKEN) or None
    loopback = is_loopback(host)
    if not loopback and token is None:
        raise Failed(
            f"--host {host} shows the locks to other machines: set {TOKEN} to a token of 16 characters or more",
            Exit.USAGE,
        )
    from leasehold.ui.security import Login
    from leasehold.ui.serving import Settings, serve

    try:
        Login(token or secrets.token_urlsafe())
    except ValueError as error:
        raise Failed(f"{TOKEN}: {error}", Exit.USAGE) from None
    silence_logging()
    keep_audit_log(audit_log)
    hosts = {*NAMES, host} if loopback and token is None else None
    settings = Settings(
        url, namespace, allow_break, token, every, f"/{prefix.strip('/')}" if prefix.strip("/") else "", hosts
    )
    try:
        listener = socket.create_server((host, port), family=family_of(host))
    except OSError as error:
        raise Failed(f"cannot listen at {host} port {port}: {error.strerror or error}", Exit.USAGE) from None
    with listener:
        shown = f"[{host}]" if ":" in host else host
        mode = "breaking is allowed" if allow_break else "read-only"
        where = f"http://{shown}:{listener.getsockname()[1]}{settings.prefix}/"
        click.echo(f"{where} ({mode}{', with a token' if token else ''}); Ctrl-C ends it")
        serve(settings, listener)


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def family_of(host: str) -> socket.AddressFamily:
    """Return the family of an address."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def keep_audit_log(path: str | None) -> None:
    """Write the audit log to a file, or else to standard error."""
    from leasehold.ui.breaking import JSONLines, ToStream, audit

    audit.propagate = False
    if path is None:
        audit.addHandler(ToStream())
        return
    try:
        audit.addHandler(JSONLines(Path(path)))
    except OSError as error:
        raise Failed(f"{path} cannot be written: {error.strerror}", Exit.USAGE) from None
