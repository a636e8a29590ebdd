"""`steelyard replay`: the decisions of a tape, made again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steelyard import native
from steelyard.agents.rules import POLICY_FILE
from steelyard.envs.errors import UserError


@dataclass(frozen=True)
class Replayed:
    """What native.replay_tape found."""

    path: Path
    found: dict[str, Any]
    other_policy: bool
    """The policy is not the file that the tape names."""

    @property
    def same(self) -> bool:
        """Whether every decision is the tape's."""
        return bool(self.found["digest"] == self.found["tape"]["digest"])


def replay(tape: str | Path, policy: str | Path | None, json_file: str | None = None) -> Replayed:
    """Replay a tape, write what was found as JSON if asked to.

    UserError (one line) for a damaged tape, and for a policy that is missing or does not fit.
    """
    path = Path(tape)
    hosted = None if policy is None else _policy_file(Path(policy))
    try:
        loaded = None if hosted is None else native.Policy(hosted)
    except (ValueError, OSError) as error:
        raise UserError(f"--policy: {error}") from error
    try:
        found = native.replay_tape(str(path), loaded)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from error
    named = found["tape"]["policy_digest"]
    other = hosted is not None and native.file_digest(hosted.read_bytes()) != named
    result = Replayed(path, found, other)
    if json_file is not None:
        _write(Path(json_file), result)
    return result


def report(result: Replayed) -> list[str]:
    """Lines that say what was found."""
    found, tape = result.found, result.found["tape"]
    pool = f"{tape['servers']} servers, balancer {tape['balancer']} of {tape['load_balancers']}"
    lines = [
        f"{result.path}: rule {tape['rule']}, {pool}, seed {tape['seed']}, {tape['records']} records",
        f"{found['decisions']} decisions in {found['seconds']:.3f} s, digest {found['digest']:016x}",
    ]
    if found["refused"]:
        lines.append(f"{found['refused']} times the policy gave no finite action")
    if result.same:
        return [*lines, "the same decisions as on the tape"]
    why = "; the policy is not the tape's" if result.other_policy else ""
    share = 100 * found["different"] / max(found["decisions"], 1)
    return [*lines, f"{found['different']} decisions ({share:.2f} %) differ from the tape's{why}"]


def _policy_file(given: Path) -> Path:
    path = given / POLICY_FILE if given.is_dir() else given
    if not path.is_file():
        raise UserError(f"--policy: {given}: no policy file")
    return path


def _write(path: Path, result: Replayed) -> None:
    found = result.found | {"same": result.same, "other_policy": result.other_policy}
    found["tape"] = dict(found["tape"])
    for part in (found, found["tape"]):
        for key in ("digest", "policy_digest", "schema_hash"):
            if key in part:
                part[key] = f"{part[key]:016x}"
    try:
        path.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    except OSError as error:
        raise UserError(f"--json: cannot write {path}: {error.strerror}") from error
