"""TOML in and out: one-line errors, `dotted.key=value` overrides, and a writer that round-trips."""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

from steelyard.envs.errors import UserError, bad_value, shown

Tree = dict[str, Any]
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def parse_toml(text: str, where: str) -> Tree:
    """The tree of a TOML text. Raises UserError with the place `where` and TOML's own reason."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # tomllib lets int() and the stack complain for themselves
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise UserError(f"{where} is not valid TOML: {reason}") from None


def parse_value(text: str) -> Any:
    """A TOML value (3, 0.5, true, [1, 2], {a = 1}, "text"); what is not one is taken as a plain string."""
    try:
        tree = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return tree["value"] if set(tree) == {"value"} else text


def apply_override(tree: Tree, override: str) -> None:
    """Sets `dotted.key=value` in the tree; in a list a part is an index. The reader checks the keys.

    Raises UserError when the text has no key or value, or when a part leads through something that is no
    table.
    """
    key, equals, text = override.partition("=")
    parts = [part.strip() for part in key.split(".")]
    if not equals or not all(parts):
        raise UserError(
            f"--set {shown(override)}: must be dotted.key=value, such as workload.arrival.rate=10"
        )
    node: Any = tree
    for depth, part in enumerate(parts):
        last = depth == len(parts) - 1
        where = ".".join(parts[:depth]) or "the scenario"
        if isinstance(node, list):
            place: Any = _index(part, node, ".".join(parts[: depth + 1]))
        elif isinstance(node, dict):
            place = part
            if not last and part not in node:
                node[part] = {}
        else:
            raise bad_value(where, node, f"a table or a list to have a key {part!r}")
        if last:
            node[place] = parse_value(text.strip())
        else:
            node = node[place]


def _index(part: str, items: list[Any], key: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", part) or int(part) >= len(items):
        allowed = f"an index from 0 to {len(items) - 1}" if items else "left out, the list is empty"
        raise UserError(f"--set {shown(key)}: {shown(part)} must be {allowed}")
    return int(part)


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(name)} = {_value(item)}" for name, item in value.items()) + "}"
    return "[" + ", ".join(_value(item) for item in value) + "]"


def _is_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def write_toml(tree: Tree, prefix: str = "") -> str:
    """TOML text of a tree of strings, booleans, numbers, lists and tables; floats round-trip."""
    lines = [
        f"{_key(name)} = {_value(value)}\n"
        for name, value in tree.items()
        if not isinstance(value, dict) and not _is_tables(value)
    ]
    for name, value in tree.items():
        dotted = prefix + _key(name)
        if isinstance(value, dict):
            lines.append(f"\n[{dotted}]\n{write_toml(value, dotted + '.')}")
        elif _is_tables(value):
            lines += [f"\n[[{dotted}]]\n{write_toml(item, dotted + '.')}" for item in value]
    return "".join(lines)
