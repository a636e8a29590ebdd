"""Connections that notice when a balancer loses them: servers that answer with their name, and a client.

    python -m steelyard.benchmarks.lb_echo serve NAME PORT ADDRESS...
    python -m steelyard.benchmarks.lb_echo ask ADDRESS PORT KEPT PERIOD_S SECONDS RATE

`ask` keeps KEPT connections open, asks each every PERIOD_S, opens RATE short ones a second beside them (one
question each), and prints after SECONDS what became of them, as JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

PATIENCE_S = 8.0
"""A connection is broken when it is reset, or when a question has no answer for so long."""


async def serve(name: str, port: int, addresses: list[str]) -> None:
    """Answer every line with the name, until killed."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while await reader.readline():
                writer.write(name.encode() + b"\n")
                await writer.drain()
        writer.close()

    for address in addresses:
        await asyncio.start_server(answer, address, port, backlog=4096)
    await asyncio.Event().wait()


@dataclass
class Told:
    """What became of the connections."""

    kept: int = 0
    broken: int = 0
    moved: int = 0
    """Answers of a kept connection by another server than its first."""
    never: int = 0
    """Kept connections that could not be opened."""
    servers: Counter[str] = field(default_factory=Counter)
    """Of the kept connections, by the server of the first answer."""
    broken_servers: Counter[str] = field(default_factory=Counter)
    longest_wait_s: float = 0.0
    short: int = 0
    short_failed: int = 0
    short_servers: Counter[str] = field(default_factory=Counter)
    short_s: list[float] = field(default_factory=list)
    """From the connection's opening to its answer."""

    def report(self) -> dict[str, Any]:
        """As JSON: latencies as percentiles."""
        told = {key: value for key, value in self.__dict__.items() if key != "short_s"}
        for percent in (50, 99):
            latency = float(np.percentile(self.short_s, percent)) if self.short_s else float("nan")
            told[f"short_p{percent}_ms"] = round(1e3 * latency, 3)
        return told


class Client:
    """All connections of an `ask`."""

    def __init__(self, address: str, port: int) -> None:
        self.address, self.port = address, port
        self.told = Told()

    async def keep(self, period_s: float, until: float) -> None:
        """One connection that is asked again and again."""
        self.told.kept += 1
        try:
            reader, writer = await self._open()
        except (OSError, TimeoutError):
            self.told.never += 1
            return
        first = ""
        try:
            while time.monotonic() < until:
                began = time.monotonic()
                name = await self._question(reader, writer)
                self.told.longest_wait_s = max(self.told.longest_wait_s, time.monotonic() - began)
                self.told.servers[name] += not first
                self.told.moved += bool(first) and name != first
                first = first or name
                await asyncio.sleep(period_s)
        except (OSError, TimeoutError):
            self.told.broken += 1
            self.told.broken_servers[first] += 1
        writer.close()

    async def once(self) -> None:
        """A short connection: one question."""
        began = time.monotonic()
        self.told.short += 1
        try:
            reader, writer = await self._open()
            self.told.short_servers[await self._question(reader, writer)] += 1
            self.told.short_s.append(time.monotonic() - began)
            writer.close()
        except (OSError, TimeoutError):
            self.told.short_failed += 1

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.wait_for(asyncio.open_connection(self.address, self.port), PATIENCE_S)

    async def _question(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
        writer.write(b"who\n")
        line = await asyncio.wait_for(reader.readline(), PATIENCE_S)
        if not line:
            raise ConnectionResetError
        return line.decode().strip()


async def question_all(
    address: str, port: int, kept: int, period_s: float, seconds: float, rate: float
) -> Told:
    """Run an `ask`; short connections arrive as a Poisson process."""
    client, rng = Client(address, port), np.random.default_rng(1)
    began = time.monotonic()
    until = began + seconds
    tasks = []
    for index in range(kept):
        tasks.append(asyncio.create_task(client.keep(period_s, until)))
        await asyncio.sleep(0.005 if index % 10 == 9 else 0)
    due = time.monotonic()
    while rate > 0 and (due := due + rng.exponential(1 / rate)) < until:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        tasks.append(asyncio.create_task(client.once()))
    await asyncio.gather(*tasks)
    return client.told


def main(words: list[str]) -> int:
    """Run the command line; its status."""
    match words:
        case ["serve", name, port, *addresses] if addresses:
            asyncio.run(serve(name, int(port), addresses))
        case ["ask", address, port, kept, period_s, seconds, rate]:
            told = asyncio.run(
                question_all(address, int(port), int(kept), float(period_s), float(seconds), float(rate))
            )
            print(json.dumps(told.report()), flush=True)
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
