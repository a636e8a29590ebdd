"""Shared-memory files and dataplanes for tests, and processes that are killed."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from steelyard import native

_numbers = itertools.count()
PATIENCE_S = 120
"""How long something may take that happens sooner or later; a loaded machine takes its time."""


@contextmanager
def free_path() -> Iterator[str]:
    """A path in shared memory where nothing is, before and after."""
    path = Path(f"/dev/shm/steelyard-pytest-{os.getpid()}-{next(_numbers)}")
    try:
        yield str(path)
    finally:
        path.unlink(missing_ok=True)


def send_flows(dataplane: native.ShmDataplane, first: int, end: int) -> int:
    """Flows [first, end), a millisecond apart; two of three end 50 ms later. The time after the last [ns]."""
    for flow in range(first, end):
        now_ns = flow * 1_000_000
        server = dataplane.open(scrambled(flow), now_ns)
        dataplane.count(server, 100)
        dataplane.first_ack(scrambled(flow), now_ns + 100_000)
        if flow % 3:
            dataplane.close(scrambled(flow), server, True, now_ns + 50_000_000)
    return end * 1_000_000


def scrambled(number: int) -> int:
    """A hash of a flow: distinct for distinct numbers."""
    return (number + 1) * 0x9E3779B97F4A7C15 % 2**64


@contextmanager
def child(body: Callable[[], None]) -> Iterator[int]:
    """A process that runs body, for ever if need be; killed (SIGKILL) at the end. Its pid."""
    pid = os.fork()
    if pid == 0:
        try:
            body()
        finally:
            os._exit(1)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def until(holds: Callable[[], bool], meanwhile: Callable[[], object] = lambda: None) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, "it did not come to hold"
        meanwhile()
        time.sleep(0.001)


def now_ns() -> int:
    """Now on the clock of dataplanes."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)
