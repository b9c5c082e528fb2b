"""Reads which ticket has a node's vote; runs a command of the protocol at a node."""

from __future__ import annotations

from leasehold.stores.redis import keys


def voted(node, namespace, name="x"):
    return node.command("HGET", keys.node_keys(namespace, name)[0], "t")


def knows(node, namespace, name):
    """Return whether a node has been asked for its vote, or to give it back."""
    return node.command("EXISTS", keys.node_keys(namespace, name)[4]) == 1


def run(node, command):
    script, those, words = command
    return node.command("EVAL", script.text, len(those), *those, *words)
