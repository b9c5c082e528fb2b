"""The same as `curator/Contender.java`, with this library: see there. Run as a program of its own."""

from __future__ import annotations

import fcntl
import os
import random
import sys
import time

from leasehold import Client
from leasehold.errors import LeaseLost, StoreUnavailable


def main(address: str, path: str, kind: str, file: str, count: str, timeout: str) -> None:
    chroot, namespace, name = path.strip("/").split("/")
    url = f"zookeeper://{address}/{chroot}?session_timeout={int(timeout) / 1000:g}"
    last, descriptor = 0, os.open(file, os.O_RDWR | os.O_CREAT)
    with Client.from_url(url, namespace=namespace) as locks:
        done = 0
        while done < int(count):
            reads = kind == "rw" and random.randrange(3) > 0
            if kind.startswith("semaphore:"):
                lock = locks.semaphore(name, int(kind[10:])).permits(1)
            elif kind == "rw":
                lock = locks.rw_lock(name).reader() if reads else locks.rw_lock(name).writer()
            else:
                lock = locks.lock(name)
            try:
                with lock as hold:
                    if kind.startswith("semaphore:"):
                        start = time.monotonic_ns()
                        time.sleep(random.randrange(4) / 1000)
                        hold.raise_if_lost()
                        print("p", start, time.monotonic_ns(), flush=True)
                    else:
                        enter(descriptor, reads)
                    if not reads and not kind.startswith("semaphore:"):
                        assert hold.token > last, "tokens of one client increase"
                        last = hold.token
                done += 1
            except (LeaseLost, StoreUnavailable) as error:
                print("LOST", error, file=sys.stderr, flush=True)


def enter(descriptor: int, reads: bool) -> None:
    start = time.monotonic_ns()
    try:
        fcntl.lockf(descriptor, (fcntl.LOCK_SH if reads else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError:
        print("OVERLAP", flush=True)
        os._exit(3)
    if not reads:
        number = int(os.pread(descriptor, 20, 0) or b"0")
        time.sleep(random.randrange(2) / 1000)
        os.pwrite(descriptor, b"%020d" % (number + 1), 0)
    else:
        time.sleep(random.randrange(2) / 1000)
    print("r" if reads else "w", start, time.monotonic_ns(), flush=True)
    fcntl.lockf(descriptor, fcntl.LOCK_UN)


if __name__ == "__main__":
    main(*sys.argv[1:])
