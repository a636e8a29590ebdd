"""Result files: records as JSON, rows as CSV or Parquet, and the manifest that says how they came to be.

Every file is written beside its place and renamed into it, so a full disk or an interrupt leaves whatever was
there before as it was.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import os
import platform
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, get_type_hints

from steelyard.envs.errors import UserError
from steelyard.envs.records import RECORD_KEYS

RACK_RECORD_KEYS = (
    "scenario",
    "policy",
    "seed",
    "tasks",
    "latency_mean_us",
    "latency_p50_us",
    "latency_p90_us",
    "latency_p99_us",
    "latency_p999_us",
    "slowdown_mean",
    "slowdown_p99",
    "by_type",
    "migrations",
    "steals",
    "messages",
    "clones",
    "imbalance_mean_us",
    "busy_mean",
    "events",
    "cpu_s",
)
"""Keys of one JSON record of a rack, in this order; docs/rack-scenarios.md tells what they mean."""

_VERSIONED = ("steelyard", "numpy", "torch", "torchrl", "tensordict", "gymnasium", "pettingzoo", "ray")
MARL_EVAL_METRICS = ("sojourn_mean_s", "sojourn_p99_s", "rejected")
_TABLE_SUFFIXES = (".csv", ".parquet")

Row = Mapping[str, Any]


def record(row: Row) -> dict[str, Any]:
    """The JSON record of one simulated episode: exactly RECORD_KEYS, of a rack RACK_RECORD_KEYS."""
    return {key: row[key] for key in (RECORD_KEYS if "flows" in row else RACK_RECORD_KEYS)}


def check_file(option: str, path: str | Path) -> Path:
    """The output path if a file can be written there; UserError names the option otherwise."""
    target = Path(path)
    if target.is_dir():
        raise UserError(f"{option}: {target} is a directory; give the name of a file")
    _check_parent(option, target)
    return target


def check_table(option: str, path: str | Path) -> Path:
    """Like check_file, for a table: the suffix chooses the format."""
    target = check_file(option, path)
    if target.suffix not in _TABLE_SUFFIXES:
        raise UserError(f"{option}: {target} must end in {' or '.join(_TABLE_SUFFIXES)}")
    return target


def check_directory(option: str, path: str | Path) -> Path:
    """The output directory, existing or to be made in an existing one; UserError names the option."""
    target = Path(path)
    if target.exists() and not target.is_dir():
        raise UserError(f"{option}: {target} is a file; give the name of a directory")
    if target.is_dir():
        _check_writable(option, target)
    else:
        _check_parent(option, target)
    return target


def make_directory(option: str, path: Path) -> None:
    """Make a directory that check_directory has passed."""
    try:
        path.mkdir(exist_ok=True)
    except OSError as error:
        raise UserError(f"{option}: cannot make {path}: {error.strerror}") from error


def write_file(option: str, path: Path, content: bytes) -> None:
    """Write content to path by rename; on any error path keeps what it held and UserError says why."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with open(partial, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(partial, path)
    except OSError as error:
        raise UserError(
            f"{option}: cannot write {path}: {error.strerror}; nothing was overwritten"
        ) from error
    finally:
        partial.unlink(missing_ok=True)


def write_json(option: str, path: Path, value: Any) -> None:
    """Write value as JSON. Numbers that JSON lacks (NaN, infinities) become null."""
    write_file(option, path, (json.dumps(_finite(value), indent=1, allow_nan=False) + "\n").encode())


def write_records(option: str, path: Path, rows: Iterable[Row]) -> None:
    """Write the records of simulated episodes as a JSON list."""
    write_json(option, path, [record(row) for row in rows])


def write_table(option: str, path: Path, rows: Sequence[Row]) -> None:
    """Write rows with all their scalar columns as CSV or Parquet, by the suffix of path."""
    flat = [
        {key: value for key, value in row.items() if not hasattr(value, "__len__") or isinstance(value, str)}
        for row in rows
    ]
    write_file(option, path, _parquet(flat) if path.suffix == ".parquet" else _csv(flat))


def marl_eval(rows: Iterable[Row], metrics: Sequence[str] = MARL_EVAL_METRICS) -> dict[str, Any]:
    """Rows in the layout that marl-eval's plotting tools read (Gorsane et al. 2022, Sec. 4).

    environment -> task -> algorithm -> run -> {step_0, absolute_metrics}: a list of values, one per seed. The
    environment is "steelyard", a task a scenario, a run a training run (a rule has one).
    """
    tasks: dict[str, Any] = {}
    for row in rows:
        runs = tasks.setdefault(row["scenario"], {}).setdefault(row["contender"], {})
        run = runs.setdefault(f"run_{row['run']}", {"step_0": {"step_count": 0}, "absolute_metrics": {}})
        for metric in metrics:
            run["step_0"].setdefault(metric, []).append(row[metric])
            run["absolute_metrics"].setdefault(metric, []).append(row[metric])
    return {"steelyard": tasks}


def manifest(
    command: str, scenarios: Iterable[Any], policies: Mapping[str, str], seeds: range, **more: Any
) -> dict[str, Any]:
    """What it takes to repeat a study: command, versions, scenarios in full, policies, seeds.

    policies: rule name or policy file by name in results; files are recorded with their SHA-256.
    """
    return {
        **provenance(command),
        "scenarios": {scenario.name: scenario.to_dict() for scenario in scenarios},
        "policies": {name: _source(source) for name, source in policies.items()},
        "seeds": {"first": seeds.start, "end": seeds.stop},
        **more,
    }


def provenance(command: str) -> dict[str, Any]:
    """Where a result comes from: command, time, versions, platform."""
    return {
        "command": command,
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "platform": f"Python {platform.python_version()}, {platform.system()}, {platform.machine()}",
    }


def command_line(name: str, command: Any) -> str:
    """`steelyard NAME OPTIONS` that gives this command (a dataclass) again; defaults are written out."""
    words = ["steelyard", name]
    hints = get_type_hints(type(command), include_extras=True)
    for option in fields(command):
        value = getattr(command, option.name)
        renamed = [getattr(mark, "name", None) for mark in getattr(hints[option.name], "__metadata__", ())]
        flag = "--" + next((given for given in renamed if given), option.name)
        for item in value if isinstance(value, tuple) else [value]:
            if item is True:
                words.append(flag)
            elif item is not None and item is not False:
                words += [flag, str(item)]
    return shlex.join(words)


def _source(source: str) -> dict[str, str]:
    path = Path(source)
    if not path.is_file():
        return {"rule": source}
    return {"file": source, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def versions() -> dict[str, str]:
    """Installed versions of what a result depends on."""
    found = {}
    for name in _VERSIONED:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _check_parent(option: str, target: Path) -> None:
    parent = target.parent
    if not parent.is_dir():
        raise UserError(f"{option}: {target}: directory {parent} does not exist; make it first")
    _check_writable(option, parent)


def _check_writable(option: str, directory: Path) -> None:
    if not os.access(directory, os.W_OK | os.X_OK):
        raise UserError(f"{option}: directory {directory} is not writable")


def _finite(value: Any) -> Any:
    """value with every non-finite float replaced by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value.item() if hasattr(value, "item") else value


def _csv(rows: Sequence[Row]) -> bytes:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().encode()


def _parquet(rows: Sequence[Row]) -> bytes:
    import pyarrow
    from pyarrow import parquet

    out = pyarrow.BufferOutputStream()
    parquet.write_table(pyarrow.Table.from_pylist([dict(row) for row in rows]), out)
    return out.getvalue().to_pybytes()
