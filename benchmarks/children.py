"""Processes that end with the one that started them: `python -m steelyard.benchmarks.children ARGS` runs
`steelyard ARGS` that way.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PARENT = "STEELYARD_PARENT"
"""Environment variable: process id of who waits for the child."""
_PR_SET_PDEATHSIG = 1  # prctl(2)


def die_with_parent(parent: int, number: int = signal.SIGTERM) -> None:
    """Have the kernel send this process a signal when `parent` ends, even by SIGKILL (Linux only).

    SIGTERM lets a training run save its checkpoint first.
    """
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if os.getppid() != parent:  # it ended before we asked
        os.kill(os.getpid(), number)


def main() -> int:
    """Run one command of `steelyard`."""
    die_with_parent(int(os.environ.get(PARENT, os.getppid())))
    from steelyard.trainers import cli

    return cli.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
