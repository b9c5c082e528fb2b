"""Reading the URL of a database server with ``?layout=NAME``, and the opener that it makes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from leasehold._runtimes.base import Flavor, Runtime
from leasehold._url import StoreURL, Veiled
from leasehold.errors import Unsupported
from leasehold.layouts.sql import shedlock, spring
from leasehold.layouts.sql.dialect import Dialect
from leasehold.layouts.sql.format import Format
from leasehold.layouts.sql.store import SharedRowStore
from leasehold.stores._sql.transport import SQLTransport

LAYOUTS = {"spring": spring, "shedlock": shedlock}
"""The names in a URL."""

MARGIN = 1.0
"""Seconds by which the clocks of the other programs' hosts may differ from the server's, unless the URL says more."""

Connect = Callable[[Runtime, Any], SQLTransport]


@dataclass(frozen=True)
class SharedRows:
    """Opens locks in the format of another library, in its table on a database server."""

    settings: Any
    layout: Format
    connect: Connect

    def open(self, runtime: Runtime, namespace: str) -> SharedRowStore:
        """Open the store; it connects at the first use."""
        if runtime.flavor is Flavor.SIMULATED:
            raise Unsupported("a real database cannot be reached from the simulated runtime; use a memory: store there")
        return SharedRowStore(runtime, self.connect(runtime, self.settings), namespace, self.layout)

    def script(self) -> str:
        """Return the SQL that makes the table, as the other library documents it."""
        return self.layout.schema

    async def prepare(self, runtime: Runtime) -> bool:
        """Make the table; return whether it was missing.

        Raises:
            StoreUnavailable: it could not be made, or is another one.
        """
        store = self.open(runtime, "default")
        try:
            return await store.prepare()
        finally:
            await store.close()


def read(url: StoreURL, dialect: Dialect, settings: Callable[[StoreURL], Any], connect: Connect) -> SharedRows:
    """Read the URL.

    Raises:
        ValueError: an unknown layout or option.
        Unsupported: the layout cannot promise what an option asks for.
    """
    name = url.options["layout"]
    if name not in LAYOUTS:
        known = ", ".join((*LAYOUTS, "medallion"))
        raise ValueError(f"unknown layout {name!r} in the {url.scheme} URL; known are: {known}")
    if "mode" in url.options:
        raise Unsupported(
            f"layout={name} has no mode=: the programs that share its locks use the rows of its table; leave mode= "
            "out, or leave out layout="
        )
    own = {"layout", *LAYOUTS[name].OPTIONS}
    given = {key: value for key, value in url.options.items() if key in own - {"layout", "margin"}}
    rest = {key: value for key, value in url.options.items() if key not in own}
    margin = url.options.get("margin", str(MARGIN))
    if not re.fullmatch(r"\d{1,4}(\.\d{1,6})?", margin):
        raise ValueError(f"option 'margin' of layout={name} is a number of seconds, as 1 or 0.5")
    make: Callable[..., Format] = LAYOUTS[name].layout
    layout = make(dialect, float(margin), **given)
    return SharedRows(settings(replace(url, options=Veiled(rest))), layout, connect)
