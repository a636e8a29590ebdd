"""The one error for bad input: a single line that names the key, the value and what is allowed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_MAX_SHOWN = 80


class UserError(ValueError):
    """Input that a person can correct. `str(error)` is always one line; the command line prints it and exits
    with 2.
    """

    def __init__(self, message: str):
        super().__init__(" ".join(message.split()))


class LiveError(RuntimeError):
    """What runs for real did not do what it should. `str(error)` is one line; the command line prints it and
    exits with 1.
    """

    def __init__(self, message: str):
        super().__init__(" ".join(message.split()))


def shown(value: object) -> str:
    """The value as it appears in an error: its repr, cut to 80 characters."""
    try:
        text = repr(value)
    except (
        ValueError,
        RecursionError,
    ):  # an integer of more than 4300 digits, or nesting deeper than the stack
        text = f"a {type(value).__name__} too large to print"
    text = " ".join(text.split())
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."


def bad_value(key: str, value: object, allowed: str) -> UserError:
    """`key = value: must be allowed`."""
    return UserError(f"{key} = {shown(value)}: must be {allowed}")


def unknown(what: str, name: object, allowed: Iterable[str]) -> UserError:
    """An unknown key or name, with near matches first and then everything that is allowed."""
    return UserError(f"unknown {what} {shown(name)}{_hint(name, allowed)}")


def unknown_key(prefix: str, name: object, allowed: Iterable[str], where: str = "") -> UserError:
    """An unknown key `prefix` + `name` of a table, with near matches first, then every key allowed."""
    dotted = f"{prefix}{name}" if str(name).isprintable() else prefix + shown(name)
    return UserError(f"{dotted[:_MAX_SHOWN]}: unknown key{where}{_hint(name, allowed)}")


def _hint(name: object, allowed: Iterable[str]) -> str:
    names = sorted(allowed)
    near = difflib.get_close_matches(str(name)[:_MAX_SHOWN], names, n=3)
    hint = " (did you mean " + " or ".join(repr(match) for match in near) + "?)" if near else ""
    return f"{hint}; allowed: {', '.join(names) or 'none'}"
