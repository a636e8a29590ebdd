"""Commands about request traces: record one from a real web server, import one from a CSV of one's own."""

from __future__ import annotations

import math
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from steelyard.envs.errors import UserError, bad_value

if TYPE_CHECKING:
    from steelyard.deploy.testbed.plan import Workload

File = Annotated[Path, tyro.conf.arg(metavar="FILE")]
OptionalFile = Annotated[Path | None, tyro.conf.arg(metavar="FILE")]
Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]

MAX_REQUESTS = 1_000_000
MAX_HOURS = 1.0
MAX_WORKERS = 256
MAX_UTILISATION = 0.9


@dataclass
class RecordTrace:
    """Record a request trace from a private Apache (prefork, a PHP page, static files) on loopback.

    Needs the Debian packages apache2-bin and libapache2-mod-php; the system's Apache service is not touched.
    An open-loop client sends every request at a time drawn in advance; the trace holds that time, the class,
    the CPU time that the server spent on the request, and the bytes of the reply.
    """

    out: File
    """The trace to write."""
    requests: int = 24_000
    """Number of requests."""
    rate: float = 100.0
    """Mean arrival rate [1/s]."""
    php_share: float = 0.6
    """Share of requests to the CPU-bound PHP page; the rest asks for static files of 100 KB to 5 MB."""
    php_mean_ms: float = 10.0
    """Mean CPU time of the page's loop, exponentially distributed [ms]."""
    swell: float = 0.3
    """Relative amplitude of the sinusoidal swell of the rate; 0 is a Poisson process."""
    swell_period_s: float = 12.0
    """Period of the swell [s]."""
    workers: int = 32
    """Apache's worker processes."""
    seed: int = 1
    """Seed of arrivals, classes and demands."""
    min_correlation: float = 0.9
    """Least correlation of service time with the work asked for; a busy processor lowers it."""
    details: OptionalFile = None
    """Also write everything measured per request (send time, wall time, script time, ...) to this CSV."""
    force: Flag = False
    """Replace files that exist."""
    quiet: Flag = False
    """No progress and no summary."""

    def run(self) -> int:
        """Record, check, write; the exit status."""
        workload = self.workload()
        from steelyard.deploy.testbed import apache, recorder
        from steelyard.deploy.testbed.client import ClientError
        from steelyard.envs.trace_file import check_target, write_trace

        check_target(self.out, self.force)
        if self.details is not None:
            check_target(self.details, self.force)
        installation = apache.find_apache()
        try:
            with _exit_on_terminate():
                recording = recorder.record(
                    workload,
                    self.workers,
                    installation,
                    self.min_correlation,
                    None if self.quiet else _show_progress,
                )
        except (apache.ServerError, ClientError, recorder.RecordingError) as error:
            print(f"steelyard: error: {error}", file=sys.stderr)
            return 1
        write_trace(self.out, recording.rows(), recorder.provenance(workload, installation), self.force)
        if self.details is not None:
            recorder.write_details(self.details, recording)
        if not self.quiet:
            print(recorder.summary(recording))
            print(f"wrote {self.out}")
        return 0

    def workload(self) -> Workload:
        """The options as a workload; UserError for values that make no sense or would swamp this machine."""
        from steelyard.deploy.testbed.plan import Workload

        _require("requests", self.requests, 2 <= self.requests <= MAX_REQUESTS, f"2 to {MAX_REQUESTS}")
        _require("rate", self.rate, 0 < self.rate < math.inf, "above 0 and finite [1/s]")
        _require("php_share", self.php_share, 0 <= self.php_share <= 1, "0 to 1")
        _require("php_mean_ms", self.php_mean_ms, 0 < self.php_mean_ms <= 1000, "above 0, up to 1000")
        _require("swell", self.swell, 0 <= self.swell <= 1, "0 to 1")
        _require(
            "swell_period_s",
            self.swell_period_s,
            0 < self.swell_period_s < math.inf,
            "above 0 and finite [s]",
        )
        allowed = "above -1 and below 1"
        _require("min_correlation", self.min_correlation, -1 < self.min_correlation < 1, allowed)
        _require("workers", self.workers, 1 <= self.workers <= MAX_WORKERS, f"1 to {MAX_WORKERS}")
        _require("seed", self.seed, 0 <= self.seed < 2**63, "0 to 2^63 - 1")
        hours = self.requests / self.rate / 3600
        _require(
            "requests / rate", f"{hours:.2f} h", hours <= MAX_HOURS, f"at most {MAX_HOURS:g} h of recording"
        )
        cores = self.rate * self.php_share * self.php_mean_ms / 1e3 * (1 + self.swell)
        most = MAX_UTILISATION * (os.cpu_count() or 1)
        allowed = f"at most {most:.2g} cores at the top of the swell on this machine"
        _require("rate * php_share * php_mean_ms", f"{cores:.3g} cores", cores <= most, allowed)
        return Workload(
            self.requests,
            self.rate,
            self.php_share,
            self.php_mean_ms / 1e3,
            self.swell,
            self.swell_period_s,
            self.seed,
        )


@dataclass
class ImportTrace:
    """Turn a CSV of requests with its own column names and units into a trace file.

    Arrivals are shifted to start at 0; times become whole microseconds. A bad row is an error with its line.
    """

    source: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="CSV")]
    """The CSV to read: a header line with column names, then one request per line."""
    out: File
    """The trace to write."""
    arrival: str
    """Column of the arrival time."""
    service: str
    """Column of the service time: what one worker needs for the request, without waiting."""
    arrival_unit: Literal["s", "ms", "us", "ns", "iso"] = "s"
    """Unit of the arrival time; iso: dates as 2025-01-31T12:00:00.5."""
    service_unit: Literal["s", "ms", "us", "ns"] = "s"
    """Unit of the service time."""
    class_column: str | None = None
    """Column of the request's class (left out: one class, "request")."""
    bytes_column: str | None = None
    """Column of the reply's size [bytes] (left out: 0)."""
    delimiter: str = ","
    """Character between columns."""
    sort: Flag = False
    """Sort by arrival; logs are often written in the order of completion."""
    force: Flag = False
    """Replace a file that exists."""
    quiet: Flag = False
    """No summary."""

    def run(self) -> int:
        """Read, convert, write; the exit status."""
        from steelyard.envs.trace_file import check_target, write_trace
        from steelyard.envs.trace_import import Columns, import_csv

        check_target(self.out, self.force)
        columns = Columns(
            self.arrival,
            self.service,
            self.arrival_unit,
            self.service_unit,
            self.class_column,
            self.bytes_column,
            self.delimiter,
        )
        rows = import_csv(self.source, columns, self.sort)
        write_trace(self.out, rows, [f"imported from {self.source.name}"], self.force)
        if not self.quiet:
            span_s = rows.arrival_us[-1] / 1e6
            print(
                f"wrote {self.out}: {len(rows.arrival_us)} requests of {len(set(rows.class_name))} classes "
                f"in {span_s:.3f} s, mean service {sum(rows.service_us) / len(rows.service_us) / 1e3:.3f} ms"
            )
        return 0


def _require(key: str, value: object, holds: bool, allowed: str) -> None:
    if not holds:
        raise (
            bad_value(key, value, allowed)
            if not isinstance(value, str)
            else UserError(f"{key} = {value}: must be {allowed}")
        )


def _show_progress(done: int, total: int, still_open: int) -> None:
    """One line on stderr, rewritten in place on a terminal."""
    if sys.stderr.isatty():
        end = "\n" if done == total else ""
        print(f"\r{done:,} of {total:,} requests, {still_open} open   ", end=end, file=sys.stderr, flush=True)


@contextmanager
def _exit_on_terminate() -> Iterator[None]:
    """SIGTERM unwinds like Ctrl-C, so that the server and its folder go away."""

    def leave(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
