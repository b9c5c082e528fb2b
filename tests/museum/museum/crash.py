"""A process that acquires a lock and is killed with it."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import signal
from importlib import import_module

from museum.port import Place, Variant


def main(module: str, text: str) -> None:
    """Acquire, say so, and die."""
    spec = json.loads(text)
    variant = import_module(f"museum.subjects.{module}").VARIANTS[spec["flavor"]]
    place = Place(**spec["place"])
    if spec["flavor"] == "asyncio":
        asyncio.run(_hold(variant, place, spec["name"], spec["lease"]))
    client = variant.open(place)
    lock = client.lock(spec["name"], spec["lease"])  # some release when they are collected
    _die(lock.acquire(0))


async def _hold(variant: Variant, place: Place, name: str, lease: float | None) -> None:
    client = variant.open(place)
    if inspect.isawaitable(client):
        client = await client
    lock = client.lock(name, lease)
    _die(await lock.acquire(0))


def _die(got: bool) -> None:
    os.write(1, b"held" if got else b"not held")
    os.kill(os.getpid(), signal.SIGKILL)
