"""What it takes to wake a process: half the time of a byte to and fro between two of them, by pipes.

    python -m steelyard.benchmarks.wake_up [--rounds N]

On one processor and on two; while processors sleep when they are idle, and while they are to wake at once
(`/dev/cpu_dma_latency`, root). On a busy machine processors do not sleep, and all four are alike.
"""

from __future__ import annotations

import os
import statistics
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import tyro

from steelyard.envs.errors import UserError
from steelyard.trainers import cli

PM_QOS = "/dev/cpu_dma_latency"
PAUSE_S = 300e-6
"""Between two bytes, as between two packets of one request at a time [s]."""


@contextmanager
def processors_awake() -> Iterator[None]:
    """Processors are to wake at once. UserError where that cannot be asked for."""
    try:
        device = os.open(PM_QOS, os.O_WRONLY)
    except OSError as error:
        raise UserError(f"{PM_QOS}: {error.strerror}; it needs root") from None
    try:
        os.write(device, struct.pack("i", 0))
        yield
    finally:
        os.close(device)


def wake_up_us(here: int, there: int, rounds: int) -> float:
    """Median time of one wake-up [us] between a process on processor `here` and one on `there`."""
    (away, to_child), (back, to_parent) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.sched_setaffinity(0, {there})
        os.close(to_child)
        while word := os.read(away, 1):
            os.write(to_parent, word)
        os._exit(0)
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {here})
    took = []
    for _ in range(rounds):
        time.sleep(PAUSE_S)
        began = time.perf_counter()
        os.write(to_child, b"x")
        os.read(back, 1)
        took.append((time.perf_counter() - began) / 2 * 1e6)
    os.sched_setaffinity(0, before)
    for end in (to_child, away, back, to_parent):
        os.close(end)
    os.waitpid(child, 0)
    return statistics.median(took)


@dataclass(kw_only=True)
class WakeUp:
    """Measure the waking of a process."""

    rounds: int = 2000
    """Bytes to and fro."""

    def run(self) -> int:
        """Measure and print; 0. UserError with one processor only, and without root."""
        processors = sorted(os.sched_getaffinity(0))
        if len(processors) < 2:
            raise UserError("two processors are needed, and there is one")
        one, other = processors[:2]
        print("| one wake-up [us] | idle processors sleep | they are to wake at once |")
        print("|---|---|---|")
        for name, there in (("on one processor", one), ("on another processor", other)):
            asleep = wake_up_us(one, there, self.rounds)
            with processors_awake():
                print(f"| {name} | {asleep:.1f} | {wake_up_us(one, there, self.rounds):.1f} |")
        return 0


def main() -> int:
    """Entry of `python -m steelyard.benchmarks.wake_up`."""
    try:
        return tyro.cli(WakeUp).run()
    except UserError as error:
        return cli.fail(str(error))


if __name__ == "__main__":
    sys.exit(main())
