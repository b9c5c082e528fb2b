"""The log of the package: no call of it raises, and its handlers may use leasehold.

Filters and handlers are code of the program. One may raise: in a thread of a client there is no web request, and its
jobs have no context variables. That would end the thread or job which logs, and with it all renewals. One may use a
lock of a client of its own, so that only one process writes. In a thread of a client that would count as a call that
interrupts another.

The package logs only where it holds no mutex that such a handler would wait for.
"""

from __future__ import annotations

import logging
import traceback
from contextlib import suppress
from functools import partial
from typing import Any

from leasehold._runtimes.base import call_user_code, is_own_error


class Log:
    """A logger; what its filters and handlers raise is shown on standard error."""

    def __init__(self, name: str = "leasehold") -> None:
        self._logger = logging.getLogger(name)
        self.is_enabled_for = self._logger.isEnabledFor
        self.debug = partial(self.log, logging.DEBUG)
        self.info = partial(self.log, logging.INFO)
        self.warning = partial(self.log, logging.WARNING)
        self.exception = partial(self.log, logging.ERROR, exc_info=True)

    def log(self, level: int, text: str, *args: object, **options: Any) -> None:
        """Log a message, as `logging.Logger.log` does."""
        try:
            call_user_code(self._logger.log, level, text, *args, stacklevel=3, **options)  # 3: the caller of this
        except BaseException as error:
            if not is_own_error(error):
                raise
            with suppress(Exception):  # there may be no standard error
                traceback.print_exc()


log = Log()
