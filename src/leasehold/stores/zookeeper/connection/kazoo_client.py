"""kazoo's client as it is used here: the names of its threads, its log messages, and its end.

It has three daemon threads: one for the connection, one for callbacks of replies, one for callbacks of watches.
"""

from __future__ import annotations

import atexit
import importlib
import logging
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from leasehold._runtimes.base import Signal, run_sync
from leasehold.errors import MissingDriver
from leasehold.stores.zookeeper.connection.settings import Settings

_client: Any = importlib.import_module("kazoo.client")
_threading: Any = importlib.import_module("kazoo.handlers.threading")
_connection: Any = importlib.import_module("kazoo.protocol.connection")
_SaslRequired: Any = importlib.import_module("kazoo.exceptions").SessionClosedRequireSaslError

NAME = "leasehold-zookeeper"
"""The name of kazoo's threads."""


class Threads(_threading.SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's threads, with our name, and with a shorter timeout for a host that does not answer."""

    patience = 5.0

    def spawn(self, func: Any, *args: Any, **kwargs: Any) -> threading.Thread:
        thread = threading.Thread(target=lambda: run_sync(_run(func, *args, **kwargs)), name=NAME, daemon=True)
        thread.start()
        return thread

    def create_connection(self, address: tuple[str, int], **options: Any) -> socket.socket:
        """Connect. kazoo's own method leaks a socket when TLS fails."""
        link = socket.create_connection(address, min(options.get("timeout") or self.patience, self.patience))
        try:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return _encrypted(link, options) if options.get("use_ssl") else link
        except BaseException:
            link.close()
            raise


def _encrypted(link: socket.socket, options: dict[str, Any]) -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=options.get("ca"))
    context.check_hostname = bool(options.get("check_hostname", True))
    if options.get("certfile"):
        context.load_cert_chain(options["certfile"], options.get("keyfile"), options.get("keyfile_password"))
    return context.wrap_socket(link, server_hostname=options.get("hostname"))


async def _run(func: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Be a thread of kazoo; an error that ends it is logged before, so `LogMessages` receives it."""
    with suppress(_SaslRequired):
        func(*args, **kwargs)


class LogMessages(logging.Handler):
    """Stores the last warning of kazoo, the only source of the reason why there is no connection.

    ``refuse`` is called when the credentials are refused.
    """

    def __init__(self, refuse: Callable[[], None]) -> None:
        super().__init__(logging.WARNING)
        self._refuse = refuse
        self.last = ""
        self.refused = False  # the credentials were refused; kazoo's state shows that only for a moment

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        cause = record.exc_info[1] if record.exc_info else None
        if cause is not None:
            text = f"{text}: {cause}"
        if not text.startswith("Transition"):
            self.last = text
        if text.startswith("AUTH_FAILED") or isinstance(cause, _SaslRequired):
            self.refused = True
            self._refuse()


def client_of(settings: Settings, messages: LogMessages) -> Any:
    """Make a client that has not begun to connect; ``messages`` receives its warnings.

    Raises:
        MissingDriver: the settings ask for SASL, and its package is not installed.
    """
    logger = logging.Logger(NAME, logging.WARNING)  # outside the tree of loggers: at DEBUG kazoo logs credentials
    logger.addHandler(messages)
    threads = Threads()
    threads.patience = max(1.0, settings.session_timeout / 6)
    try:
        client = _client.KazooClient(
            hosts=settings.where,
            timeout=settings.session_timeout,
            handler=threads,
            logger=logger,
            connection_retry={"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 1.0},
            auth_data=[("digest", settings.digest.reveal())] if settings.digest else None,
            sasl_options=dict(settings.sasl) or None,
            **settings.tls,
        )
    except ModuleNotFoundError:
        client = None
    if client is None or (settings.sasl and not _connection.PURESASL_AVAILABLE):
        raise MissingDriver("SASL needs the package pure-sasl; install it with: pip install pure-sasl")
    return client


def shut_down(client: Any) -> None:
    """Shut the connection down: kazoo finds it closed, and connects to another server."""
    with suppress(Exception):
        client._connection._socket.shutdown(2)


def end_background(client: Any, done: Signal | None = None) -> None:
    """Stop and close a client of kazoo in a thread of its own, since that may take long."""

    def end() -> None:
        try:
            with suppress(Exception):
                client.stop()
            with suppress(Exception):
                client.close()
        finally:
            if done is not None:
                done.set()

    try:
        threading.Thread(target=end, name=NAME, daemon=True).start()
    except RuntimeError:  # the interpreter is ending, and no thread can be started
        end()


def close_inherited(client: Any) -> None:
    """Close, in a forked child, the descriptors of the parent's client; nothing is sent."""
    atexit.unregister(client.handler.stop)
    connection = client._connection
    for link in (connection._socket, connection._read_sock, connection._write_sock):
        if link is not None:
            with suppress(Exception):
                socket.close(link.detach())
