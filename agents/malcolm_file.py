"""The policy file of a run of Malcolm, policy.npz: what the servers of a rack have learned.

migration_weight, steal_weight (N, N, K) float32 and migration_bias, steal_bias (N, N): the actors of every
server as torch.nn.Linear has them, on K = N loads or, with ranks or waits, K = 2 N inputs. critic (N, D).
config: the fields of native.MalcolmConfig as JSON, among them how loads are read.
"""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard import native

FILE = "policy.npz"
ACTORS = ("migration_weight", "migration_bias", "steal_weight", "steal_bias")
PARTS = (*ACTORS, "critic")


@dataclass(frozen=True)
class Learned:
    """What a policy.npz holds."""

    config: Any
    """native.MalcolmConfig."""
    parameters: NDArray[np.float32]
    """(N, P), as native.malcolm_parameters has them."""
    actors: NDArray[np.float32]
    """(N, A): the same without the critics, as native.encode_rack_policy takes them."""


def find(source: str | Path) -> Path | None:
    """The policy file that `source` is, or has in it as a run directory; None if there is none."""
    path = Path(source)
    if path.is_dir():
        path = path / FILE
    return path if path.suffix == ".npz" and path.is_file() else None


def read(path: Path) -> Learned:
    """The file at `path`. ValueError (one line) if it is damaged."""
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as stored:
            fields = json.loads(str(stored["config"]))
            parts = [stored[name] for name in PARTS]
        config = native.MalcolmConfig()
        for name, value in fields.items():
            setattr(config, name, value)
        flat = [part.reshape(len(part), -1) for part in parts]
        parameters, actors = np.concatenate(flat, axis=1), np.concatenate(flat[: len(ACTORS)], axis=1)
        if parameters.dtype != np.float32:
            raise ValueError(f"parameters are {parameters.dtype}, not float32")
        return Learned(config, parameters, actors)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{path}: not a policy of a rack ({reason})") from error
