"""Policy files: where a run keeps its policy, and what a file says about itself."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard import native
from steelyard.agents import malcolm_file
from steelyard.agents.rules import POLICY_FILE
from steelyard.deploy import rack_file
from steelyard.deploy.rack_file import RackFile
from steelyard.envs.errors import UserError


@dataclass(frozen=True)
class PolicyFile:
    """A policy of load balancers that passed every check of its reader."""

    path: Path
    run: Path | None
    """The run directory that it stands in; None for a file given by itself."""
    blob: bytes
    spec: dict[str, Any]
    """As native.decode_policy gives it; arrays are float32."""

    @property
    def sha256(self) -> str:
        """Digest of the file, in hex."""
        return hashlib.sha256(self.blob).hexdigest()

    @property
    def layers(self) -> list[str]:
        """One line per layer of an actor, first to last: kind, width and activation."""
        return [_layer_line(layer) for layer in self.spec["actors"][0]["layers"]]

    @property
    def parameters(self) -> int:
        """Numbers in one actor, without its normalisation."""
        layers = self.spec["actors"][0]["layers"]
        return sum(value.size for layer in layers for value in layer.values() if hasattr(value, "size"))

    @property
    def bfloat16(self) -> bool:
        """Whether the matrices of its layers are bfloat16 numbers."""
        return bool(self.spec.get("weights") == "bfloat16")

    @property
    def matrices(self) -> list[NDArray[np.float32]]:
        """The matrices of all layers of all actors."""
        layers = [layer for actor in self.spec["actors"] for layer in actor["layers"]]
        return [layer[key] for layer in layers for key in layer if key.startswith("weight")]

    def rounded(self) -> PolicyFile:
        """The same with matrices rounded to bfloat16. UserError if a weight is out of its range."""
        try:
            blob = native.encode_policy(self.spec | {"weights": "bfloat16"})
        except ValueError as error:
            raise UserError(f"{self.path}: {error}") from error
        return PolicyFile(self.path, self.run, blob, native.decode_policy(blob))


def read(source: str | Path) -> PolicyFile | RackFile:
    """The policy of a run directory, or of a policy file itself; UserError (one line) if there is none."""
    given = Path(source)
    if not given.exists():
        raise UserError(f"{given}: no such run directory or policy file")
    run = given if given.is_dir() else None
    path = given / POLICY_FILE if run else given
    if (learned := malcolm_file.find(given)) and not (run and path.is_file()):
        return rack_file.from_run(learned, run)
    if not path.is_file():
        raise UserError(
            f"{given}: no {POLICY_FILE} in it; either training has not saved yet or it is not a run "
            "directory of `steelyard train`"
        )
    try:
        blob = path.read_bytes()
        if blob.startswith(rack_file.MAGIC):
            native.decode_rack_policy(blob)
            return RackFile(path, run, blob)
        return PolicyFile(path, run, blob, native.decode_policy(blob))
    except OSError as error:
        raise UserError(f"{path}: cannot read: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{path}: {error}") from error


def _layer_line(layer: dict[str, Any]) -> str:
    if layer["kind"] == "gru":
        return f"gru {layer['weight_ih'].shape[1]} -> {layer['weight_hh'].shape[1]}"
    outputs, inputs = layer["weight"].shape
    return f"dense {inputs} -> {outputs}, {layer['activation']}"
