"""Records a request trace from a real Apache: warm up, plan, play open loop, join both sides' records, check.

Which time is the service time, and why: see envs/traces/README.md.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from steelyard.deploy.testbed.apache import HOST, Installation, LogLine, PrivateApache
from steelyard.deploy.testbed.client import OpenLoopClient, Reply, Request
from steelyard.deploy.testbed.plan import CLASS_NAMES, PHP_CLASS, STATIC_FILES, Plan, Workload, draw_plan
from steelyard.envs.trace_file import TraceRows, replace_file

if TYPE_CHECKING:
    import numpy as np

MAX_OPEN = 512
LOG_LIMIT_S = 10.0
CALIBRATION_ITERATIONS = 500_000
WARM_UP_GAP_US = 15_000
MAX_STILL_CLOCK = 0.001
"""Largest share of requests whose CPU time may read 0: beyond it the clock is too coarse for them."""
MIN_CHECKED = 100
"""Requests of the PHP class from which the correlation means something."""

Progress = Callable[[int, int, int], None]
"""Called about once a second with (replies so far, requests in all, requests open now)."""


class RecordingError(RuntimeError):
    """The recording is not usable; nothing was written. One line."""


@dataclass(frozen=True)
class Recording:
    """Arrays of shape (n,) int64, in the order of arrival; times in microseconds from the run's start."""

    plan: Plan
    sent_us: np.ndarray
    done_us: np.ndarray
    cpu_us: np.ndarray
    """CPU time of the server process: the service time of the trace."""
    wall_us: np.ndarray
    """Apache's %D, which includes every wait."""
    script_us: np.ndarray
    """CPU time of the PHP script alone; -1 for static files."""
    body_bytes: np.ndarray

    def rows(self) -> TraceRows:
        """As the rows of a trace file."""
        return TraceRows(
            self.plan.arrival_us.tolist(),
            [CLASS_NAMES[index] for index in self.plan.class_id],
            self.cpu_us.clip(min=1).tolist(),
            self.body_bytes.tolist(),
        )

    def lag_us(self) -> np.ndarray:
        """How late each request left, against its schedule [us]."""
        return self.sent_us - self.plan.arrival_us

    def work_correlation(self) -> float:
        """Correlation of service time with the work asked for, over the PHP class; NaN if it has too few."""
        import numpy as np

        php = self.plan.class_id == CLASS_NAMES.index(PHP_CLASS)
        if php.sum() < MIN_CHECKED:
            return float("nan")
        return float(np.corrcoef(self.plan.iterations[php], self.cpu_us[php])[0, 1])

    def check(self, min_correlation: float) -> None:
        """RecordingError when the service times cannot be what they claim to be.

        `min_correlation` is the least `work_correlation`: a processor busy with other work lowers it.
        """
        import numpy as np

        still = float(np.mean(self.cpu_us < 1))
        if still > MAX_STILL_CLOCK:
            raise RecordingError(
                f"the CPU clock read 0 for {still:.2%} of requests; need at most {MAX_STILL_CLOCK:.2%}"
            )
        php = self.script_us >= 0
        if php.any() and np.median(self.cpu_us[php] - self.script_us[php]) < 0:
            raise RecordingError(
                "CPU time per PHP request is below the script's own; the two clocks disagree"
            )
        correlation = self.work_correlation()
        if correlation < min_correlation:
            raise RecordingError(
                f"service time follows the work asked for with a correlation of {correlation:.3f}; "
                f"need at least {min_correlation:g}"
            )


def record(
    workload: Workload,
    workers: int,
    installation: Installation,
    min_correlation: float,
    progress: Progress | None = None,
) -> Recording:
    """Start a private Apache, play the workload against it and return what was measured."""
    with PrivateApache(installation, workers) as server:
        plan = draw_plan(workload, _warm_up(server, workers))
        requests = [
            Request(f"r{index}", plan.path(index), int(plan.arrival_us[index]))
            for index in range(workload.requests)
        ]
        told = (
            None if progress is None else lambda done, still_open: progress(done, len(requests), still_open)
        )
        replies = OpenLoopClient(HOST, server.port, MAX_OPEN, told).run(requests)
        _require_complete(requests, replies)
        lines = _log_of(server, requests)
    recording = _join(plan, replies, lines)
    recording.check(min_correlation)
    return recording


def _warm_up(server: PrivateApache, workers: int) -> float:
    """Ask for everything a few times, so that every worker has its code and files in memory.

    Returns the speed of the PHP loop [iterations per second of CPU time], the median over the requests.
    """
    import numpy as np

    paths = [f"/loop.php?n={CALIBRATION_ITERATIONS}"] * (4 * workers) + [
        f"/{name}.bin" for name in STATIC_FILES
    ] * 4
    requests = [Request(f"w{index}", path, index * WARM_UP_GAP_US) for index, path in enumerate(paths)]
    replies = OpenLoopClient(HOST, server.port, MAX_OPEN).run(requests)
    _require_complete(requests, replies)
    script_us = [line.script_us for line in _log_of(server, requests) if line.script_us is not None]
    if not script_us or np.median(script_us) < 1:
        raise RecordingError("the PHP page did not report its CPU time")
    return float(CALIBRATION_ITERATIONS / np.median(script_us) * 1e6)


def _require_complete(requests: Sequence[Request], replies: Sequence[Reply]) -> None:
    """RecordingError naming the first request that was not answered in full."""
    failed = [index for index, reply in enumerate(replies) if reply.problem or reply.status != 200]
    if failed:
        request, reply = requests[failed[0]], replies[failed[0]]
        raise RecordingError(
            f"{len(failed)} of {len(requests)} requests failed; the first: {request.path} at "
            f"{request.scheduled_us / 1e6:.3f} s: {reply.problem or f'status {reply.status}'}"
        )


def _log_of(server: PrivateApache, requests: Sequence[Request]) -> list[LogLine]:
    """The server's log lines of these requests, in their order. The last lines may lag behind the replies."""
    deadline = time.monotonic() + LOG_LIMIT_S
    while True:
        by_id = {line.request_id: line for line in server.served()}
        missing = [request for request in requests if request.request_id not in by_id]
        if not missing:
            return [by_id[request.request_id] for request in requests]
        if time.monotonic() > deadline:
            raise RecordingError(
                f"{len(missing)} requests are not in the server's log; first: {missing[0].path}"
            )
        time.sleep(0.1)


def _join(plan: Plan, replies: Sequence[Reply], lines: Sequence[LogLine]) -> Recording:
    """Client's and server's records of the same requests, side by side."""
    import numpy as np

    def column(values: list[int]) -> np.ndarray:
        return np.array(values, dtype=np.int64)

    differ = [line for reply, line in zip(replies, lines, strict=True) if reply.body_bytes != line.body_bytes]
    if differ:
        raise RecordingError(f"{len(differ)} replies differ in size from what the server says that it sent")
    return Recording(
        plan=plan,
        sent_us=column([reply.sent_us for reply in replies]),
        done_us=column([reply.done_us for reply in replies]),
        cpu_us=column([line.cpu_us for line in lines]),
        wall_us=column([line.wall_us for line in lines]),
        script_us=column([-1 if line.script_us is None else line.script_us for line in lines]),
        body_bytes=column([line.body_bytes for line in lines]),
    )


def write_details(path: Path, recording: Recording) -> None:
    """Everything that was measured, one line per request, for a look beyond the trace."""
    plan = recording.plan
    lines = ["class,iterations,scheduled_us,sent_us,done_us,cpu_us,wall_us,script_us,bytes"]
    for i in range(len(plan.arrival_us)):
        lines.append(
            f"{CLASS_NAMES[plan.class_id[i]]},{plan.iterations[i]},{plan.arrival_us[i]},{recording.sent_us[i]},"
            f"{recording.done_us[i]},{recording.cpu_us[i]},{recording.wall_us[i]},{recording.script_us[i]},"
            f"{recording.body_bytes[i]}"
        )
    replace_file(path, "\n".join(lines) + "\n")


def summary(recording: Recording) -> str:
    """A table for people: per class how many, how long, how large; then how the client kept its schedule."""
    import numpy as np

    plan = recording.plan
    lines = [
        f"{'class':<12} {'requests':>8} {'service ms: mean':>17} {'p50':>8} {'p99':>8} {'%D p50':>8}"
        f" {'bytes':>10}"
    ]
    for index, name in enumerate(CLASS_NAMES):
        chosen = plan.class_id == index
        if chosen.any():
            cpu_ms = recording.cpu_us[chosen] / 1e3
            p50, p99 = np.percentile(cpu_ms, [50, 99])
            wall_ms = np.median(recording.wall_us[chosen]) / 1e3
            size = recording.body_bytes[chosen].mean()
            lines.append(
                f"{name:<12} {chosen.sum():>8} {cpu_ms.mean():>17.3f} {p50:>8.3f} {p99:>8.3f} {wall_ms:>8.3f}"
                f" {size:>10.0f}"
            )
    span_s = plan.arrival_us[-1] / 1e6
    lag_p50, lag_p99 = np.percentile(recording.lag_us(), [50, 99]) / 1e3
    lines += [
        f"{len(plan.arrival_us)} requests in {span_s:.1f} s: {len(plan.arrival_us) / span_s:.1f}/s; "
        f"mean service {recording.cpu_us.mean() / 1e3:.3f} ms; "
        f"{recording.cpu_us.sum() / 1e6 / span_s:.2f} cores on average",
        f"sent late by {lag_p50:.2f} ms (p50), {lag_p99:.2f} ms (p99); the trace holds the scheduled times",
        f"correlation of service time with the work asked for (php): {recording.work_correlation():.4f}",
    ]
    return "\n".join(lines)


def provenance(workload: Workload, installation: Installation) -> list[str]:
    """Comment lines of the trace: what recorded it, on what."""
    kernel = ".".join(platform.release().split(".")[:2])
    return [
        f"recorded by: steelyard record-trace --requests {workload.requests} --rate {workload.rate:g}"
        f" --php-share {workload.php_share:g} --php-mean-ms {workload.php_mean_s * 1e3:g}"
        f" --swell {workload.swell:g} --swell-period-s {workload.swell_period_s:g} --seed {workload.seed}",
        f"server: {installation.version()}, prefork, {installation.php_version()}",
        f"machine: {_processor()}, {os.cpu_count()} CPUs, Linux {kernel}",
        "arrival_us: open-loop schedule; service_us: CPU time of the server process; bytes: reply body",
    ]


def _processor() -> str:
    """Model name of the processor."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()
