"""The console: an ASGI app that shows the locks of a store, live. It needs Starlette, the extra ``ui``.

`leasehold ui` serves it by itself; a Starlette or FastAPI application mounts it::

    host.mount("/locks", leasehold.ui.app(client))
"""

from __future__ import annotations

from importlib.util import find_spec

from leasehold.errors import MissingDriver

if find_spec("starlette") is None:
    raise MissingDriver("starlette is not installed; install it with: pip install 'leasehold[ui]'")

from leasehold.ui.console import app

__all__ = ["app"]
