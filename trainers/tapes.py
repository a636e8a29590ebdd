"""One episode of the simulator with a tape of one of its balancers (native/tape)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steelyard import native
from steelyard.envs.errors import UserError
from steelyard.trainers import evaluation, results
from steelyard.trainers.results import Row


@dataclass(frozen=True)
class Taped:
    """A recorded episode."""

    row: Row
    """As evaluation.run_cells gives it."""
    tape: dict[str, Any]
    """balancer, records, decisions, digest of native.record_tape."""


def check(study: evaluation.Study, path: str) -> Path:
    """The tape's file. UserError unless the study is one episode of one policy on one cluster."""
    target = results.check_file("--tape", path)
    if study.world != "cluster":
        raise UserError("--tape: holds what a load balancer saw; the scenario is a rack")
    members = sum(len(contender.members) for contender in study.contenders)
    for count, what in (
        (len(study.scenarios), "scenarios"),
        (members, "policies"),
        (len(study.seeds), "seeds"),
    ):
        if count != 1:
            raise UserError(f"--tape: {count} {what} given; a tape is of one episode, as with --seeds 0:1")
    return target


def record(study: evaluation.Study, cell: evaluation.Cell, balancer: int, target: Path) -> Taped:
    """Simulate the one episode and write its tape; the file appears whole or not at all. UserError for a rule
    that knows more than a tape holds, a balancer that is not there, and a full disk."""
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    source = next(member.source for member in study.contenders[0].members)
    digest = native.file_digest(Path(source).read_bytes()) if Path(source).is_file() else 0
    try:
        stats = native.record_tape(
            cell.config, cell.rule, study.seeds[0], balancer, str(partial), digest, study.convention
        )
        tape = stats.pop("tape")
        if tape["failure"]:
            raise UserError(f"--tape: {target}: {tape['failure']}")
        partial.replace(target)
    except ValueError as error:
        raise UserError(str(error) if isinstance(error, UserError) else f"--tape: {error}") from error
    finally:
        partial.unlink(missing_ok=True)
    row = {
        "scenario": cell.scenario.name,
        "policy": cell.member,
        "contender": cell.contender,
        "run": cell.run,
        **stats,
        "cpu_s": 0.0,
        "digest": f"{stats['digest']:016x}",
        "convention": study.convention,
    }
    return Taped(row, tape)
