"""What a run of Malcolm leaves to be played: policy.npz (agents/malcolm_file.py), and exports of it."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard import native
from steelyard.agents import malcolm_file
from steelyard.agents.malcolm_file import FILE, find
from steelyard.agents.rules import POLICY_FILE
from steelyard.envs.errors import UserError

__all__ = ["FILE", "encode", "exported_rule", "fields_of", "find", "find_exported", "rule"]


def fields_of(config: Any) -> dict[str, Any]:
    """Every field of a native.MalcolmConfig."""
    found = {name: getattr(config, name) for name in dir(config) if not name.startswith("_")}
    return {name: value for name, value in found.items() if isinstance(value, (str, int, float))}


def encode(config: Any, parameters: NDArray[np.float32]) -> bytes:
    """The file of `parameters`, (N, P) as native.malcolm_parameters has them."""
    n = len(parameters)
    inputs = n if config.inputs == "loads" else 2 * n
    ends = np.cumsum([n * inputs, n, n * inputs, n])
    parts = dict(zip(malcolm_file.PARTS, np.split(parameters, ends, axis=1), strict=True))
    for name in ("migration_weight", "steal_weight"):
        parts[name] = parts[name].reshape(n, n, inputs)
    stream = io.BytesIO()
    np.savez(stream, config=json.dumps(fields_of(config)), **parts)  # type: ignore[arg-type]
    return stream.getvalue()


def rule(path: Path, frozen: bool = True) -> Any:
    """native.RackRule that plays the file; frozen: and learns no more. UserError if it is damaged."""
    try:
        learned = malcolm_file.read(path)
    except ValueError as error:
        raise UserError(str(error)) from error
    return native.malcolm_rule(learned.config, frozen=frozen, parameters=learned.parameters)


def find_exported(source: str | Path) -> Path | None:
    """The exported policy that `source` is, or has in it as an export's folder; None if there is none."""
    path = Path(source)
    if path.is_dir():
        path = path / POLICY_FILE
    return path if path.is_file() else None


def exported_rule(path: Path) -> Any:
    """native.RackRule that plays an exported blob or shared object. UserError if it is damaged."""
    try:
        return native.RackPolicy(path).rule()
    except (ValueError, OSError) as error:
        raise UserError(f"policy {error}") from error
