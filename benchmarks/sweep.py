"""Training runs as processes, several at a time; what was stopped saves itself and the next sweep resumes it.

The log of a run is its lock: the process that trains holds it open, so two sweeps never train one run, and a
new sweep waits for what a killed one has left behind.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import IO

from steelyard.benchmarks import children, study_runs
from steelyard.benchmarks.study_runs import Run
from steelyard.envs.errors import UserError
from steelyard.trainers.evaluation import OnProgress, silent

_POLL_S = 0.2
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Failure:
    """Something that did not work, while the rest went on."""

    what: str
    why: str
    log: str = ""

    def __str__(self) -> str:
        return f"{self.what}: {self.why}" + (f"; see {self.log}" if self.log else "")


@dataclass
class _Active:
    run: Run
    process: subprocess.Popen[bytes]


def train(runs: Sequence[Run], jobs: int, on_progress: OnProgress = silent) -> list[Failure]:
    """Train what is not finished, `jobs` runs at a time; what failed.

    UserError, before anything starts, if a run directory belongs to something else. KeyboardInterrupt after
    Ctrl-C or SIGTERM, when every process has saved its checkpoint and ended.
    """
    for run in runs:
        study_runs.check_run(run)
    waiting = [run for run in runs if not study_runs.is_finished(run)]
    active: list[_Active] = []
    failures: list[Failure] = []
    with interruptible():
        try:
            while waiting or active:
                _start(waiting, active, jobs)
                time.sleep(_POLL_S)
                failures += _collect(active)
                _report(runs, active, waiting, on_progress)
        except BaseException:
            _stop(active, on_progress)
            raise
    return failures


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM within is as Ctrl-C: KeyboardInterrupt."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _start(waiting: list[Run], active: list[_Active], jobs: int) -> None:
    """Start runs while there is room; those that another process trains keep waiting."""
    for run in list(waiting):
        if len(active) >= jobs:
            return
        log = _open_log(run)
        if log is None:
            continue
        with log:
            waiting.remove(run)
            if study_runs.is_finished(run):  # by another sweep, while we waited
                continue
            active.append(_Active(run, _launch(run, log)))


def _open_log(run: Run) -> IO[bytes] | None:
    """The run's log, locked; None while another process trains it."""
    try:
        run.directory.parent.mkdir(parents=True, exist_ok=True)
        log = open(run.log, "ab")  # noqa: SIM115  (handed over to the process)
    except OSError as error:
        raise UserError(f"--runs: cannot write {run.log}: {error.strerror}") from error
    try:
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        log.close()
        return None
    return log


def _launch(run: Run, log: IO[bytes]) -> subprocess.Popen[bytes]:
    resume = study_runs.is_begun(run)
    if not resume:
        study_runs.clear_unstarted(run)
    arguments = run.arguments(resume)
    try:
        log.write(f"$ {shlex.join(['steelyard', *arguments])}\n".encode())
        log.flush()
    except OSError as error:
        raise UserError(f"--runs: cannot write {run.log}: {error.strerror}") from error
    return subprocess.Popen(
        [sys.executable, "-m", "steelyard.benchmarks.children", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env={**os.environ, **_ONE_THREAD, children.PARENT: str(os.getpid())},
        start_new_session=True,  # Ctrl-C reaches us alone: a run's first signal is ours
    )


def _collect(active: list[_Active]) -> list[Failure]:
    """Take ended processes off the list; the failed ones among them."""
    failures = []
    for each in list(active):
        status = each.process.poll()
        if status is None:
            continue
        active.remove(each)
        if status or not study_runs.is_finished(each.run):
            failures.append(Failure(each.run.name, _reason(each.run, status), str(each.run.log)))
    return failures


def _reason(run: Run, status: int) -> str:
    """The last line of the log, or what the exit status says."""
    lines = run.log.read_text("utf-8", "replace").strip().splitlines()
    last = lines[-1] if lines and not lines[-1].startswith("$ ") else "no message"
    how = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
    return f"{how}: {last}"


def _stop(active: Sequence[_Active], on_progress: OnProgress) -> None:
    """Have every process save and end; a second Ctrl-C ends them at once, with the checkpoint before."""
    for each in active:
        each.process.terminate()
    try:
        for number, each in enumerate(active):
            on_progress(number, len(active), "stopping: runs end their round and save")
            each.process.wait()
    except KeyboardInterrupt:
        for each in active:
            each.process.kill()
            each.process.wait()


def _report(
    runs: Sequence[Run], active: Sequence[_Active], waiting: Sequence[Run], on_progress: OnProgress
) -> None:
    goal = sum(run.learner.entry.episodes for run in runs)
    pending = {run.directory for run in waiting} | {each.run.directory for each in active}
    done = sum(
        min(study_runs.episodes_played(run), run.learner.entry.episodes)
        if run.directory in pending
        else run.learner.entry.episodes
        for run in runs
    )
    names = (
        ", ".join(each.run.name for each in active) or "waiting for another process that trains these runs"
    )
    on_progress(done, goal, names)
