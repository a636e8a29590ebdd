"""The policy file of Malcolm, policy.npz: what the servers of a rack have learned, to be played frozen.

migration_weight, steal_weight (N, N, K) float32 and migration_bias, steal_bias (N, N): the actors of every
server as torch.nn.Linear has them, on K = N loads or, with ranks or waits, K = 2 N inputs. critic (N, D).
config: the fields of native.MalcolmConfig as JSON, among them how loads are read.
"""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard import native
from steelyard.envs.errors import UserError

FILE = "policy.npz"
_PARTS = ("migration_weight", "migration_bias", "steal_weight", "steal_bias", "critic")


def fields_of(config: Any) -> dict[str, Any]:
    """Every field of a native.MalcolmConfig."""
    found = {name: getattr(config, name) for name in dir(config) if not name.startswith("_")}
    return {name: value for name, value in found.items() if isinstance(value, (str, int, float))}


def encode(config: Any, parameters: NDArray[np.float32]) -> bytes:
    """The file of `parameters`, (N, P) as native.malcolm_parameters has them."""
    n = len(parameters)
    inputs = n if config.inputs == "loads" else 2 * n
    ends = np.cumsum([n * inputs, n, n * inputs, n])
    parts = dict(zip(_PARTS, np.split(parameters, ends, axis=1), strict=True))
    for name in ("migration_weight", "steal_weight"):
        parts[name] = parts[name].reshape(n, n, inputs)
    stream = io.BytesIO()
    np.savez(stream, config=json.dumps(fields_of(config)), **parts)  # type: ignore[arg-type]
    return stream.getvalue()


def find(source: str | Path) -> Path | None:
    """The policy file that `source` is, or has in it as a run directory; None if there is none."""
    path = Path(source)
    if path.is_dir():
        path = path / FILE
    return path if path.suffix == ".npz" and path.is_file() else None


def frozen_rule(path: Path) -> Any:
    """native.RackRule that plays the file and learns no more. UserError if it is damaged."""
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as stored:
            fields = json.loads(str(stored["config"]))
            parts = [stored[name] for name in _PARTS]
        config = native.MalcolmConfig()
        for name, value in fields.items():
            setattr(config, name, value)
        parameters = np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)
        return native.malcolm_rule(config, frozen=True, parameters=parameters)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{path}: not a policy of a rack ({reason})") from error
