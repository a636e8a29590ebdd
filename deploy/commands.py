"""The `steelyard` commands of this room: `export` and `replay`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro


@dataclass
class Export:
    """Export a trained policy as a blob, as compiled C++, or as ONNX.

    blob: DIR/policy.bin, which every host of steelyard loads.
    cpp: DIR/policy.cpp with the weights as constants, the kernel beside it, and DIR/policy.so with a C face.
    onnx: DIR/policy.onnx for other runtimes, with the blob beside it.
    All come with a model card. Runs on clusters and on racks alike. Example:
    steelyard export runs/first --to cpp --out exported
    """

    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN_DIR|BLOB")]
    """A run directory of `steelyard train`, or a policy file."""
    out: Annotated[str, tyro.conf.arg(metavar="DIR")]
    """Directory to write; it must be new or empty."""
    to: Literal["blob", "cpp", "onnx"] = "blob"
    """Form of the exported policy."""
    weights: Literal["float32", "bf16"] = "float32"
    """bf16: rounded to bfloat16, half the size of the blob; the model card states what that changes."""
    force: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Replace an earlier export in DIR."""
    quiet: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print nothing but errors."""

    def run(self) -> int:
        """Check everything, write beside the target, put it in place, print what was made."""
        from steelyard.deploy import export

        done = export.export(self.source, Path(self.out), self.to, weights=self.weights, force=self.force)
        if not self.quiet:
            print("\n".join(_report(done.files, done.cost_ns)))
        return 0


@dataclass
class Replay:
    """Make the decisions of a tape again, by the same core.

    Tapes are recorded by `steelyard simulate --tape` and by the dataplane. Says whether every decision is the
    tape's (status 0) or not (status 1). Example:
    steelyard replay day.tape --policy exported/policy.bin
    """

    tape: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TAPE")]
    """The file."""
    policy: Annotated[str | None, tyro.conf.arg(metavar="RUN_DIR|BLOB")] = None
    """What set the weights, for a tape of a hosted policy; another of the same pool says what it would have
    decided."""
    json: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None
    """Write what was found to this file."""
    quiet: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print nothing but errors."""

    def run(self) -> int:
        """Replay, write the file, print what was found."""
        from steelyard.deploy import replay

        found = replay.replay(self.tape, self.policy, self.json)
        if not self.quiet:
            print("\n".join(replay.report(found)))
        return 0 if found.same or found.other_policy else 1


def _report(files: Sequence[Path], cost_ns: float) -> list[str]:
    return [f"wrote {path}" for path in files] + [f"one decision takes {_time(cost_ns)}"]


def _time(ns: float) -> str:
    return f"{ns:.1f} ns" if ns < 1000 else f"{ns / 1000:.2f} us"
