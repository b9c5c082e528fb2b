"""Guards: fenced writes, so that no write of an older holder is applied after one of a newer holder.

A lock alone cannot promise that: a holder may be stopped between its last check of the lock and its write. The resource
can, if it stores the highest token that ever wrote to it and refuses lower ones. One file here is one kind of
resource: `guards.sql` for rows of a database, `guards.file` for a file, `guards.redis` for keys of Redis,
`guards.etcd` for those of etcd.

Read, write and commit inside the block of the lock. A commit after the release lets the next holder read the old value,
and no token detects that.

Example:
    ```python
    import sqlite3
    from leasehold.guards import Stale, sql

    stock = sqlite3.connect(":memory:")
    stock.execute("CREATE TABLE stock (item INTEGER PRIMARY KEY, left_over INTEGER, fence INTEGER NOT NULL DEFAULT 0)")
    stock.execute("INSERT INTO stock (item, left_over) VALUES (42, 10)")
    with client.lock("stock:42") as hold:
        sql.update(stock, "stock", {"left_over": 9}, where={"item": 42}, token=hold.token)
        stock.commit()
    try:
        # an older holder wakes up
        sql.update(stock, "stock", {"left_over": 8}, where={"item": 42}, token=hold.token - 1)
    except Stale as error:
        print(f"refused: {error}")
    stock.close()
    ```
"""

from __future__ import annotations

from leasehold.errors import LeaseholdError

__all__ = ["Stale"]


class Stale(LeaseholdError):
    """A write was refused: the resource has seen a higher token. The writer has lost its lock without knowing.

    Attributes:
        token: the token of the write that was refused.
        fence: the highest token that the resource has seen, where it is known.
    """

    def __init__(self, message: str, *, token: int | None = None, fence: int | None = None, **facts: object) -> None:
        super().__init__(message, token=token)
        self.fence = fence
        self.__dict__.update(facts)


def check_token(token: int) -> int:
    """Return the token, if it is valid.

    Raises:
        TypeError: it is not an int.
        ValueError: it is not above zero, or too large for 64 bits.
    """
    if isinstance(token, bool) or not isinstance(token, int):
        raise TypeError(f"a fencing token is an int, hold.token, not {type(token).__name__}")
    if not 0 < token < 2**63:
        raise ValueError(f"a fencing token is from 1 to 2**63 - 1, not {token}")
    return token


def check_fence(what: str, fence: int, token: int) -> None:
    """Raise `Stale` if ``what`` was written by a holder with a higher token."""
    if fence > token:
        raise Stale(
            f"{what} was written by a holder with token {fence}, and this one has {token}: its lock was lost",
            token=token,
            fence=fence,
        )
