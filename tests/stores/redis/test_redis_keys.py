"""The scripts that are sent, and the keys that they have."""

from __future__ import annotations

import re

import redis.crc
from hypothesis import given, settings
from hypothesis import strategies as st

from leasehold._model import (
    Change,
    ReleaseReason,
)
from leasehold._runtimes.base import finish
from leasehold.stores.redis import keys, scripts
from leasehold_lab.proxy.proxy import FaultProxy
from leasehold_lab.servers import RedisServer
from leasehold_lab.servers.base import free_port
from support.stores.redis.calls import a_ticket, claim, leave, open_store, renew

# --- texts, slots, keys --------------------------------------------------------------------------------------------


def test_only_the_scripts_of_the_package_are_sent(redis_server):
    """No name, token or time is part of a script: the server would have to keep each text for ever."""
    redis_server.command("SCRIPT", "FLUSH")
    with FaultProxy(redis_server.port) as proxy:
        store = open_store(f"redis://127.0.0.1:{proxy.port}")
        for number in range(30):
            name, ticket = f"{number}-{'é' * number}", a_ticket(lease=1.0 + number, meta=f'"{number}"')
            claim(store, name, ticket)
            claim(store, name, a_ticket(fair=True))
            renew(store, (name, ticket))
            finish(store.inspect(name))
            finish(store.compare_and_set(name, Change(b"%d" % number)))
            leave(store, name, ticket, ReleaseReason.BREAK if number % 2 else ReleaseReason.RELEASE)
            redis_server.command("SCRIPT", "FLUSH")
        finish(store.close())
        sent = proxy.seen()
    digests = set(re.findall(rb"EVALSHA\r\n\$40\r\n([0-9a-f]{40})\r\n", sent))
    assert digests <= {script.digest for script in scripts.ALL}
    sizes = set(re.findall(rb"EVAL\r\n\$(\d+)\r\n", sent))
    assert sizes <= {b"%d" % len(script.text) for script in scripts.ALL}
    assert len(digests) >= 5
    lengths = {len(script.text): script for script in scripts.ALL}
    for found in re.finditer(rb"EVAL\r\n\$(\d+)\r\n", sent):
        size = int(found[1])
        assert sent[found.end() : found.end() + size] == lengths[size].text


def test_the_keys_of_a_lock_share_a_slot_on_a_real_server():
    with RedisServer(config={"cluster-enabled": "yes", "cluster-port": str(free_port())}) as server:
        for name in ("a", "stock:42", "{}", "{a}b", "}{", "a}:lock", "é", "\x00\n%7B", "x" * 512):
            those = [*keys.mutex_keys("default", name), keys.cell_key("default", name)]
            slots = {server.command("CLUSTER", "KEYSLOT", key) for key in those}
            assert slots == {redis.crc.key_slot(those[0])}


TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12) | st.text("{}:%/ab*", min_size=1)


def keys_of(namespace: str, name: str) -> list[bytes]:
    return [*keys.mutex_keys(namespace, name), keys.cell_key(namespace, name)]


@settings(max_examples=500, deadline=None)
@given(first=st.tuples(TEXT, TEXT), second=st.tuples(TEXT, TEXT))
def test_no_two_names_share_a_key(first, second):
    one, other = keys_of(*first), keys_of(*second)
    assert len(set(one)) == len(one)
    assert len({redis.crc.key_slot(key) for key in one}) == 1
    assert keys.name_of(one[0]) == first[1]
    if first == second:
        assert one == other
    else:
        assert not {*one} & {*other}
    for key in one:
        assert key.count(b"{") == key.count(b"}") == 1
        assert not re.search(rb"[\x00-\x20*?\[\]\\]", key)
