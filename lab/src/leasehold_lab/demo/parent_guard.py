"""Run a command that ends with the demo: when standard input ends, so does the command, whatever ended the demo.

If this process is killed, the kernel kills the command.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

from leasehold_lab.lifetime import end_with, tied_to_this_process

ENDS_WITHIN = 3.0
"""Seconds that the command gets to end after it was asked to."""


def main() -> int:
    """Run the command given as arguments; return its exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the demo decides when its children end
    end_with(int(sys.argv[1]), signal.SIGCONT)
    command = subprocess.Popen(tied_to_this_process(sys.argv[2:]), stdin=subprocess.DEVNULL)
    threading.Thread(target=_end_with_stdin, args=(command,), daemon=True).start()
    return command.wait()


def _end_with_stdin(command: subprocess.Popen[bytes]) -> None:
    sys.stdin.buffer.read()
    command.terminate()
    try:
        command.wait(ENDS_WITHIN)
    except subprocess.TimeoutExpired:
        command.kill()


if __name__ == "__main__":
    sys.exit(main())
