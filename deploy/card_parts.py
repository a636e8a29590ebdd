"""Parts of model cards: tables, the record of training, the machine."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from steelyard.envs.errors import UserError

_MAX_VALUE = 120


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object of a run directory; empty if there is no such file, UserError if it is damaged."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as JSON ({error}); the run directory is damaged") from error
    if not isinstance(found, dict):
        raise UserError(
            f"{path}: holds a {type(found).__name__}, not an object; the run directory is damaged"
        )
    return found


def flatten(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Dotted keys and printable values of nested JSON objects."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from flatten(item, f"{prefix}.{key}" if prefix else str(key))
        return
    text = value if isinstance(value, str) else json.dumps(value)
    text = " ".join(text.split()).replace("|", "\\|")
    yield prefix, text if len(text) <= _MAX_VALUE else text[: _MAX_VALUE - 3] + "..."


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines] + [""]


def training(run: Path | None) -> list[str]:
    """What is on record of how a policy was trained."""
    lines = ["## Training", ""]
    if run is None:
        return [*lines, "Not on record: the policy was exported from a file without its run directory.", ""]
    config, manifest = read_json(run / "config.json"), read_json(run / "manifest.json")
    if not config and not manifest:
        return [*lines, "Not on record: the run directory has neither config.json nor manifest.json.", ""]
    if config:
        lines += table(["setting", "value"], flatten(config))
    if manifest:
        lines += ["### Versions and command", ""]
        lines += table(["", ""], flatten({k: v for k, v in manifest.items() if k != "scenarios"}))
    return lines


def machine() -> str:
    """What a time was measured on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    name = names[0] if names else platform.processor() or "unknown processor"
    return f"{name}, one core, {platform.system()} {platform.machine()}"
