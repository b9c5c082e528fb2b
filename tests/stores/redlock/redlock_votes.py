"""Who has a node's vote, and running a command of the protocol at a node."""

from __future__ import annotations

from leasehold.stores.redis import keys


def voted(node, namespace, name="x"):
    return node.command("HGET", keys.node_keys(namespace, name)[0], "t")


def run(node, command):
    script, those, words = command
    return node.command("EVAL", script.text, len(those), *those, *words)
