"""A log that fails: a filter of the program that raises, or that needs a lock of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable


class FailingLog(logging.Filter):
    """Calls ``fail`` with each message of the library whose text has these words, instead of logging it."""

    def __init__(self, fail: Callable[[str], object], words: str = "") -> None:
        super().__init__()
        self.messages = list[str]()
        self._fail, self._words = fail, words

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if self._words not in message:
            return True
        self.messages.append(message)
        self._fail(message)
        return False

    def __enter__(self) -> FailingLog:
        logging.getLogger("leasehold").addFilter(self)
        return self

    def __exit__(self, *error: object) -> None:
        logging.getLogger("leasehold").removeFilter(self)
