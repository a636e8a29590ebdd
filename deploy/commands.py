"""The `steelyard` commands of this room: `export`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro


@dataclass
class Export:
    """Export a trained policy as a blob or as compiled C++, both free of Python.

    blob: DIR/policy.bin, which every host of steelyard loads.
    cpp: DIR/policy.cpp with the weights as constants, the kernel beside it, and DIR/policy.so with a C face.
    Both come with a model card. Example:
    steelyard export runs/first --to cpp --out exported
    """

    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN_DIR|BLOB")]
    """A run directory of `steelyard train`, or a policy file."""
    out: Annotated[str, tyro.conf.arg(metavar="DIR")]
    """Directory to write; it must be new or empty."""
    to: Literal["blob", "cpp"] = "blob"
    """Form of the exported policy."""
    force: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Replace an earlier export in DIR."""
    quiet: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print nothing but errors."""

    def run(self) -> int:
        """Check everything, write beside the target, put it in place, print what was made."""
        from steelyard.deploy import export

        done = export.export(self.source, Path(self.out), self.to, force=self.force)
        if not self.quiet:
            print("\n".join(_report(done.files, done.cost_ns)))
        return 0


def _report(files: Sequence[Path], cost_ns: float) -> list[str]:
    return [f"wrote {path}" for path in files] + [f"one decision takes {cost_ns / 1000:.2f} us"]
