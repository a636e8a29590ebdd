"""What `steelyard-lb` loses when something goes wrong, measured on this machine; as root.

    python -m steelyard.benchmarks.lb_reliability [--json FILE] [--only NAME]

Prints a table; docs/dataplane.md has one. Takes a few minutes.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import tyro

from steelyard.benchmarks import lb_trouble as trouble
from steelyard.benchmarks.lb_million import million_flows
from steelyard.benchmarks.lb_net import Net
from steelyard.benchmarks.lb_trouble import Row
from steelyard.envs.errors import UserError, unknown
from steelyard.trainers import cli

SERVERS = 3
KEPT = 200
"""Connections that are open when it happens; 20 short ones a second come beside them."""


@dataclass(frozen=True)
class Trouble:
    """One row of the table."""

    name: str
    title: str
    measure: Callable[[Net, Path], Row]


TROUBLES = (
    Trouble("killed-maglev", "killed and restarted, maglev", lambda net, at: _killed(net, at, "maglev")),
    Trouble("killed-lsq", "killed and restarted, lsq", lambda net, at: _killed(net, at, "lsq")),
    Trouble("takeover-maglev", "a second one takes over, maglev", lambda net, at: _taken(net, at, "maglev")),
    Trouble("takeover-lsq", "a second one takes over, lsq", lambda net, at: _taken(net, at, "lsq")),
    Trouble("server", "a server dies", lambda net, at: trouble.server_killed(net, at, KEPT, 10.0)),
    Trouble("agent", "the agent dies", lambda net, at: trouble.agent_killed(net, at, KEPT, 8.0)),
    Trouble("flood", "SYN flood, 5000/s", lambda net, at: trouble.syn_flood(net, at, KEPT, 5000, 10.0)),
    Trouble("malformed", "malformed frames", lambda net, at: trouble.malformed(net, at, KEPT, 30_000, 8.0)),
    Trouble("disk", "disk full for the tape", lambda net, at: trouble.full_disk(net, at, KEPT, 8.0)),
)
MILLION = "million"


def _killed(net: Net, folder: Path, rule: str) -> Row:
    return trouble.killed_and_restarted(net, folder, rule, KEPT, 8.0)


def _taken(net: Net, folder: Path, rule: str) -> Row:
    return trouble.taken_over(net, folder, rule, KEPT, 8.0)


SHOWN = ("kept", "broken", "moved", "never", "short", "short_failed", "short_p50_ms", "short_p99_ms")
"""Columns; what else a row has is said after them."""


@dataclass(kw_only=True)
class Reliability:
    """Measure what is lost when a balancer, a server, an agent or a disk fails, and under attack."""

    json: str | None = None
    """Write the rows there."""
    only: str | None = None
    """One row instead of all."""
    flows: int = 1_000_000
    """Of the row `million`."""

    def run(self) -> int:
        """Measure and print; 0."""
        names = [MILLION, *(each.name for each in TROUBLES)]
        if self.only is not None and self.only not in names:
            raise unknown("--only", self.only, names)
        rows: dict[str, Row] = {}
        with tempfile.TemporaryDirectory(prefix="steelyard-lb-") as folder:
            at = Path(folder)
            if self.only in (None, MILLION):
                rows[MILLION] = million_flows(at / MILLION, self.flows)
                print(f"{MILLION}: {_words(rows[MILLION], ())}", flush=True)
            if self.only != MILLION:
                self._live(at, rows)
        if self.json is not None:
            Path(self.json).write_text(json.dumps(rows, indent=1) + "\n", "utf-8")
        return 0

    def _live(self, folder: Path, rows: dict[str, Row]) -> None:
        with Net(folder, SERVERS) as net:
            trouble.echo_servers(net)
            print(f"| what happens | {' | '.join(SHOWN)} | |\n|{'---|' * (len(SHOWN) + 2)}")
            for each in TROUBLES:
                if self.only not in (None, each.name):
                    continue
                began = time.monotonic()
                row = rows[each.name] = each.measure(net, folder / each.name)
                row["seconds"] = round(time.monotonic() - began, 1)
                cells = " | ".join(str(row[key]) for key in SHOWN)
                print(f"| {each.title} | {cells} | {_words(row, SHOWN)} |", flush=True)


def _words(row: Row, shown: tuple[str, ...]) -> str:
    return ", ".join(
        f"{key} {value}" for key, value in row.items() if key not in shown and value not in (0, {})
    )


def main() -> int:
    """Entry of `python -m steelyard.benchmarks.lb_reliability`."""
    try:
        return tyro.cli(Reliability).run()
    except UserError as error:
        return cli.fail(str(error))


if __name__ == "__main__":
    sys.exit(main())
