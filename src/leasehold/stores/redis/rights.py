"""The rights that a restricted user of Redis needs: asked for before the first acquire, and by ``doctor``."""

from __future__ import annotations

from collections.abc import Sequence

from leasehold.stores.redis import keys
from leasehold.stores.redis.connection.base import RIGHTS_PAGE, NotPermitted, ReplyError, Transport, refused
from leasehold.stores.redis.scripts import RIGHTS


async def missing_rights(
    transport: Transport, namespace: str, channel: bytes, *, within: float, info: bool = False
) -> Sequence[str] | ReplyError:
    """Return the rights that scripts lack, as ACL rules (``+publish``); or the error, if no script may be run.

    A server reports that a script was denied, but not always which command. And a missing right that only a contended
    lock needs would fail on the day of contention. So a script that changes nothing tries all commands.

    ``info``: whether the scripts use INFO, as in strict mode and with a quarantine.
    """
    reply = await transport.call(RIGHTS.by_text(keys.probe_keys(channel), (channel, b"%d" % info)), within=within)
    if isinstance(reply, ReplyError):
        return reply
    rules: list[str] = [word.decode() for word in reply]
    return [keys.channel_rule(namespace) if mode == "&" else mode for mode in rules]


async def check_rights(
    transport: Transport, where: str, namespace: str, channel: bytes, *, within: float, info: bool = False
) -> None:
    """Raise `NotPermitted` with all missing rights, if any is missing; other errors are left to the acquire."""
    lacking = await missing_rights(transport, namespace, channel, within=within, info=info)
    if isinstance(lacking, ReplyError):
        if lacking.code == "NOPERM":
            keys_denied = " key" in str(lacking)
            raise not_permitted(where, [keys.key_rule(namespace)]) if keys_denied else refused(where, lacking)
    elif lacking:
        raise not_permitted(where, lacking)


def not_permitted(where: str, lacking: Sequence[str]) -> NotPermitted:
    """Return the error that names the rights."""
    return NotPermitted(
        f"Redis at {where}: its user lacks the right{'s' if len(lacking) > 1 else ''} {' '.join(lacking)}; "
        f"grant what is listed in {RIGHTS_PAGE}"
    )
