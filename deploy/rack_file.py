"""Policy files of racks: what a run of Malcolm learned, as policy.npz or as a blob of an earlier export."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard import native
from steelyard.agents import malcolm_file
from steelyard.envs.errors import UserError

MAGIC = b"SLYDRCK1"


@dataclass(frozen=True)
class RackFile:
    """A policy of a rack's servers that passed every check of its reader."""

    path: Path
    run: Path | None
    """The run directory that it stands in; None for a file given by itself."""
    blob: bytes

    @cached_property
    def spec(self) -> dict[str, Any]:
        """As native.decode_rack_policy gives it."""
        return native.decode_rack_policy(self.blob)

    @property
    def sha256(self) -> str:
        """Digest of the blob, in hex."""
        return hashlib.sha256(self.blob).hexdigest()

    @property
    def bfloat16(self) -> bool:
        """Whether its weights are bfloat16 numbers."""
        return bool(self.spec["weights"] == "bfloat16")

    @property
    def matrices(self) -> list[NDArray[np.float32]]:
        """Weights of migration and of stealing, (N, N, K) each."""
        n, k, actors = self.spec["num_servers"], self.spec["num_inputs"], self.spec["actors"]
        half = actors.shape[1] // 2
        return [actors[:, start : start + n * k].reshape(n, n, k) for start in (0, half)]

    def rounded(self) -> RackFile:
        """The same with weights rounded to bfloat16. UserError if one is out of its range."""
        try:
            blob = native.encode_rack_policy(self.spec["config"], self.spec["actors"], "bfloat16")
        except ValueError as error:
            raise UserError(f"{self.path}: {error}") from error
        return RackFile(self.path, self.run, blob)


def from_run(path: Path, run: Path | None) -> RackFile:
    """The policy.npz at `path`. UserError if it is damaged."""
    try:
        learned = malcolm_file.read(path)
        return RackFile(path, run, native.encode_rack_policy(learned.config, learned.actors))
    except ValueError as error:
        text = str(error)
        raise UserError(text if text.startswith(str(path)) else f"{path}: {text}") from error
