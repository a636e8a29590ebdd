"""Checkpoints: a directory of arrays (.npz) and JSON, without pickled classes, replaced as a whole.

A state is a tree of dicts and lists whose leaves are tensors, arrays, numbers, strings, booleans or None.
Arrays go to arrays.npz under their dotted path, everything else to state.json with a mark where an array was.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from steelyard.envs.errors import UserError

VERSION = 1
_ARRAY = "__array__"


def save(directory: Path, state: Any, more: Callable[[Path], None] | None = None) -> None:
    """Write `state` to `directory`; at every moment `find` gives the old or the new checkpoint, whole.

    `more` may add files of its own to the folder that it is given, before it takes its place.
    """
    arrays: dict[str, np.ndarray] = {}
    tree = _split(state, "", arrays)
    fresh, old = directory.with_name(f"{directory.name}.new"), directory.with_name(f"{directory.name}.old")
    if old.exists() and not directory.exists():  # the last save was cut off between its renames
        os.rename(old, directory)
    for leftover in (fresh, old):
        shutil.rmtree(leftover, ignore_errors=True)
    fresh.mkdir(parents=True)
    with open(fresh / "arrays.npz", "wb") as stream:
        np.savez(stream, **arrays)  # type: ignore[arg-type]
        stream.flush()
        os.fsync(stream.fileno())
    with open(fresh / "state.json", "w", encoding="utf-8") as text:
        json.dump({"version": VERSION, "state": tree}, text, indent=1)
        text.flush()
        os.fsync(text.fileno())
    if more is not None:
        more(fresh)
    if directory.exists():
        os.rename(directory, old)
    os.rename(fresh, directory)
    shutil.rmtree(old, ignore_errors=True)


def find(directory: Path) -> Path | None:
    """The last whole checkpoint: `directory`, or its predecessor if a save was cut off between renames."""
    for candidate in (directory, directory.with_name(f"{directory.name}.old")):
        if (candidate / "state.json").is_file():
            return candidate
    return None


def load(directory: Path) -> Any:
    """The state that `save` wrote, arrays as tensors. UserError if missing, damaged or of another version."""
    found = find(directory)
    if found is None:
        raise UserError(f"{directory}: no checkpoint in it")
    try:
        content = json.loads((found / "state.json").read_text("utf-8"))
        with np.load(io.BytesIO((found / "arrays.npz").read_bytes()), allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        if content["version"] != VERSION:
            raise UserError(f"{found}: checkpoint of version {content['version']}; allowed: {VERSION}")
        return _join(content["state"], arrays)
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{found}: damaged checkpoint ({type(error).__name__}: {error})") from error


def _split(node: Any, path: str, arrays: dict[str, np.ndarray]) -> Any:
    if isinstance(node, dict):
        return {
            str(key): _split(value, f"{path}.{key}" if path else str(key), arrays)
            for key, value in node.items()
        }
    if isinstance(node, (list, tuple)):
        return [_split(value, f"{path}.{index}", arrays) for index, value in enumerate(node)]
    if isinstance(node, torch.Tensor):
        node = node.detach().cpu().numpy()
    if isinstance(node, np.ndarray):
        arrays[path] = node
        return {_ARRAY: path}
    if node is None or isinstance(node, (bool, int, float, str)):
        return node
    raise TypeError(f"{path}: a {type(node).__name__} has no place in a checkpoint")


def _join(node: Any, arrays: dict[str, np.ndarray]) -> Any:
    if isinstance(node, dict):
        if set(node) == {_ARRAY}:
            return torch.from_numpy(arrays[node[_ARRAY]])
        return {key: _join(value, arrays) for key, value in node.items()}
    if isinstance(node, list):
        return [_join(value, arrays) for value in node]
    return node


def optimiser_state(optimiser: torch.optim.Optimizer) -> dict[str, Any]:
    """Moments and step counts; hyper-parameters come from the configuration."""
    return {str(index): dict(moments) for index, moments in optimiser.state_dict()["state"].items()}


def load_optimiser(optimiser: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Take over the moments of `optimiser_state`."""
    whole = optimiser.state_dict()
    whole["state"] = {int(index): moments for index, moments in state.items()}
    optimiser.load_state_dict(whole)
