"""From a TOML tree to checked dataclasses: every field says once what it accepts, its default and meaning.

The reader, the error messages, the TOML writer and the table of keys in the documentation all derive from
these declarations.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass
from typing import Any, Protocol, TypeVar

from steelyard.envs.errors import UserError, bad_value, unknown, unknown_key

T = TypeVar("T")
_MAX_ITEMS = 1_000_000


class Accepts(Protocol):
    """What a field accepts."""

    def allowed(self) -> str:
        """In words, to follow "must be"."""

    def read(self, value: object, key: str) -> Any:
        """The checked value. Raises UserError naming `key`."""

    def plain(self, value: Any) -> object:
        """The inverse of `read`: a value that TOML and JSON can carry."""


def _bounds(low: float, high: float, open_low: bool) -> str:
    if low == -math.inf and high == math.inf:
        return ""
    above = f"> {low:g}" if open_low else f">= {low:g}"
    if high == math.inf:
        return " " + above
    return f" {'>' if open_low else '>='} {low:g} and <= {high:g}"


@dataclass(frozen=True)
class Number:
    """A finite float within bounds."""

    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False

    def allowed(self) -> str:
        return "a number" + _bounds(self.low, self.high, self.open_low)

    def read(self, value: object, key: str) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise bad_value(key, value, self.allowed())
        try:
            number = float(value)
        except OverflowError:
            raise bad_value(key, value, self.allowed()) from None
        too_low = number <= self.low if self.open_low else number < self.low
        if not math.isfinite(number) or too_low or number > self.high:
            raise bad_value(key, value, self.allowed())
        return number

    def plain(self, value: float) -> object:
        return value


@dataclass(frozen=True)
class Whole:
    """An int within bounds."""

    low: int
    high: int

    def allowed(self) -> str:
        return f"a whole number from {self.low} to {self.high}"

    def read(self, value: object, key: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not self.low <= value <= self.high:
            raise bad_value(key, value, self.allowed())
        return value

    def plain(self, value: int) -> object:
        return value


@dataclass(frozen=True)
class Flag:
    """true or false."""

    def allowed(self) -> str:
        return "true or false"

    def read(self, value: object, key: str) -> bool:
        if not isinstance(value, bool):
            raise bad_value(key, value, self.allowed())
        return value

    def plain(self, value: bool) -> object:
        return value


@dataclass(frozen=True)
class Text:
    """A string without control characters."""

    max_length: int = 4000

    def allowed(self) -> str:
        return f"a string of at most {self.max_length} printable characters"

    def read(self, value: object, key: str) -> str:
        if (
            not isinstance(value, str)
            or len(value) > self.max_length
            or not value.replace("\n", "").isprintable()
        ):
            raise bad_value(key, value, self.allowed())
        return value

    def plain(self, value: str) -> object:
        return value


@dataclass(frozen=True)
class Choice:
    """One of some names."""

    names: tuple[str, ...]

    def allowed(self) -> str:
        return "one of " + ", ".join(self.names)

    def read(self, value: object, key: str) -> str:
        if value is True and "true" in self.names:  # --set reward.measure=true
            return "true"
        if not isinstance(value, str):
            raise bad_value(key, value, self.allowed())
        if value not in self.names:
            raise unknown(key, value, self.names)
        return value

    def plain(self, value: str) -> object:
        return value


@dataclass(frozen=True)
class Listed:
    """A list of one kind of thing."""

    item: Accepts
    min_items: int = 1
    max_items: int = _MAX_ITEMS

    def allowed(self) -> str:
        most = "or more" if self.max_items == _MAX_ITEMS else f"to {self.max_items}"
        return f"a list of {self.min_items} {most}, each {self.item.allowed()}"

    def read(self, value: object, key: str) -> tuple[Any, ...]:
        if not isinstance(value, (list, tuple)) or not self.min_items <= len(value) <= self.max_items:
            raise bad_value(key, value, self.allowed())
        return tuple(self.item.read(item, f"{key}.{index}") for index, item in enumerate(value))

    def plain(self, value: tuple[Any, ...]) -> object:
        return [self.item.plain(item) for item in value]


@dataclass(frozen=True)
class Span:
    """A number, or [low, high] from which each seed draws its own. Read as a pair."""

    number: Number

    def allowed(self) -> str:
        return f"{self.number.allowed()}, or [low, high] of such"

    def read(self, value: object, key: str) -> tuple[float, float]:
        if not isinstance(value, (list, tuple)):
            number = self.number.read(value, key)
            return (number, number)
        if len(value) != 2:
            raise bad_value(key, value, self.allowed())
        low, high = (self.number.read(end, f"{key}.{index}") for index, end in enumerate(value))
        if low > high:
            raise bad_value(key, value, self.allowed() + " with low <= high")
        return (low, high)

    def plain(self, value: tuple[float, float]) -> object:
        return value[0] if value[0] == value[1] else list(value)


@dataclass(frozen=True)
class Table:
    """A nested dataclass."""

    cls: type

    def allowed(self) -> str:
        return "a table with the keys " + ", ".join(field.name for field in dataclasses.fields(self.cls))

    def read(self, value: object, key: str) -> Any:
        return read_table(self.cls, value, key)

    def plain(self, value: Any) -> object:
        return to_tree(value)


def item(accepts: Accepts, doc: str, default: Any = MISSING, unit: str = "") -> Any:
    """A dataclass field: what it accepts, what it means, its default (none: required) and its unit."""
    metadata = {"accepts": accepts, "doc": doc, "unit": unit}
    if isinstance(accepts, Table) and default is MISSING:
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def table(cls: type[T], doc: str) -> Any:
    """A field holding a nested table in which every key has a default."""
    factory: Callable[[], T] = cls
    return dataclasses.field(
        default_factory=factory, metadata={"accepts": Table(cls), "doc": doc, "unit": ""}
    )


def read_table(cls: type[T], tree: object, key: str) -> T:
    """Reads a dataclass from a tree of TOML values; `key` is its dotted name ("" at the root).

    Raises UserError for an unknown key, a missing one, or a value of the wrong type or out of bounds.
    A dataclass may add checks across its fields in a method `check(key)`.
    """
    accepts = Table(cls)
    if not isinstance(tree, dict):
        raise bad_value(key or "the scenario", tree, accepts.allowed())
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    prefix = f"{key}." if key else ""
    for name in tree:
        if name not in fields:
            raise unknown_key(prefix, name, fields)
    values = {}
    for name, field in fields.items():
        if name in tree:
            values[name] = field.metadata["accepts"].read(tree[name], prefix + name)
        elif field.default is MISSING and field.default_factory is MISSING:
            raise UserError(f"{prefix}{name} is missing: must be {field.metadata['accepts'].allowed()}")
    made = cls(**values)
    check = getattr(made, "check", None)
    if check is not None:
        check(key)
    return made


def to_tree(value: Any) -> dict[str, object]:
    """The inverse of `read_table`: every key that has a value, defaults included; None is left out."""
    tree = {}
    for field in dataclasses.fields(value):
        held = getattr(value, field.name)
        if held is not None:
            tree[field.name] = field.metadata["accepts"].plain(held)
    return tree


def check_keys_of_kind(
    table_: Any, key: str, keys: dict[str, tuple[str, ...]], optional: tuple[str, ...] = ()
) -> None:
    """Checks that a table with a `kind` has the keys of that kind, no other; `optional` may be left out."""
    needed = keys[table_.kind]
    for field in dataclasses.fields(table_):
        name, given = field.name, getattr(table_, field.name) is not None
        if name == "kind":
            continue
        if given and name not in needed:
            raise unknown_key(f"{key}.", name, needed, f" for kind {table_.kind!r}")
        if not given and name in needed and name not in optional:
            raise UserError(f"{key}.{name} is missing: must be {field.metadata['accepts'].allowed()}")


def keys_of(cls: type, prefix: str = "") -> Iterator[tuple[str, str, str, str, str]]:
    """Rows (dotted key, allowed, default, unit, meaning) of every key of a dataclass, in order; lists show as
    `[]`.
    """
    for field in dataclasses.fields(cls):
        accepts = field.metadata["accepts"]
        listed = isinstance(accepts, Listed)
        inner = accepts.item if isinstance(accepts, Listed) else accepts
        name = prefix + field.name + ("[]" if listed and isinstance(inner, Table) else "")
        if isinstance(inner, Table):
            yield from keys_of(inner.cls, name + ".")
            continue
        default = (
            "required"
            if field.default is MISSING
            else "none"
            if field.default is None
            else str(field.default)
        )
        yield name, accepts.allowed(), default, field.metadata["unit"], field.metadata["doc"]
