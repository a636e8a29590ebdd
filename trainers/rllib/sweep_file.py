"""The file of a sweep: what is trained, and over which hyper-parameters; read and checked without Ray."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from steelyard.envs.errors import UserError, bad_value, shown, unknown_key
from steelyard.envs.scenario import Scenario
from steelyard.envs.toml_text import parse_toml
from steelyard.trainers import algorithms
from steelyard.trainers.rllib import settings as rllib

KINDS = ("choice", "grid", "uniform", "loguniform")
"""How a hyper-parameter may vary: drawn from a list, every one of a list, drawn from [low, high]."""
METRIC = "eval_sojourn_s"
_KEYS = ("scenario", "set", "engine", "algo", "episodes", "seed", "samples", "scheduler", "metric", "space")
_MAX = 1_000_000


@dataclass(frozen=True)
class Range:
    """One varied hyper-parameter: its kind and, in `values`, the list or (low, high)."""

    kind: str
    values: tuple[Any, ...]


@dataclass(frozen=True)
class Sweep:
    """A sweep, checked."""

    scenario: Scenario
    engine: Literal["local", "rllib"]
    algo: str
    episodes: int
    seed: int
    samples: int
    scheduler: Literal["asha", "none"]
    space: Mapping[str, Range]
    fixed: Mapping[str, Any]

    def config(self, chosen: Mapping[str, Any]) -> Any:
        """The algorithm's hyper-parameters with those that a trial has chosen. UserError if they are bad."""
        hyper = {**self.fixed, **chosen}
        if self.engine == "local":
            return algorithms.make_config(algorithms.find_algorithm(self.algo).config_class(), hyper)
        settings = algorithms.make_config(rllib.find_entry(self.algo).settings, hyper)
        settings.check(self.scenario)
        return settings


def read(path: str) -> tuple[Sweep, str]:
    """The sweep and the text of its file. UserError (one line) for anything wrong in it."""
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"sweep {path}: cannot be read ({reason})") from None
    tree = parse_toml(text, f"sweep {path}")
    for key in tree:
        if key not in _KEYS:
            raise unknown_key("", key, _KEYS, f" of sweep {path}")
    sweep = Sweep(
        scenario=_scenario(tree),
        engine=_one_of(tree, "engine", ("local", "rllib"), "rllib"),  # type: ignore[arg-type]
        algo=_text(tree, "algo"),
        episodes=_whole(tree, "episodes", 1, 320),
        seed=_whole(tree, "seed", 0, 0),
        samples=_whole(tree, "samples", 1, 1),
        scheduler=_one_of(tree, "scheduler", ("asha", "none"), "none"),  # type: ignore[arg-type]
        space=(ranges := _space(tree))[0],
        fixed=ranges[1],
    )
    _one_of(tree, "metric", (METRIC,), METRIC)
    _check_ends(sweep)
    return sweep, text


def _scenario(tree: Mapping[str, Any]) -> Scenario:
    overrides = tree.get("set", [])
    if not isinstance(overrides, list) or not all(isinstance(each, str) for each in overrides):
        raise bad_value("set", overrides, 'a list of overrides such as ["pool.balancers=4"]')
    return Scenario.load(_text(tree, "scenario"), overrides)


def _text(tree: Mapping[str, Any], key: str) -> str:
    if not isinstance(tree.get(key), str):
        raise bad_value(key, tree.get(key), "a name")
    return tree[key]


def _one_of(tree: Mapping[str, Any], key: str, allowed: tuple[str, ...], default: str) -> str:
    value = tree.get(key, default)
    if value not in allowed:
        raise bad_value(key, value, " or ".join(allowed))
    return value


def _whole(tree: Mapping[str, Any], key: str, low: int, default: int) -> int:
    value = tree.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= _MAX:
        raise bad_value(key, value, f"a whole number from {low} to {_MAX}")
    return value


def _space(tree: Mapping[str, Any]) -> tuple[dict[str, Range], dict[str, Any]]:
    """What varies, and what is only set."""
    space = tree.get("space")
    if not isinstance(space, dict) or not space:
        raise bad_value("space", space, "a table of hyper-parameters")
    varied, fixed = {}, {}
    for name, value in space.items():
        if isinstance(value, dict):
            varied[name] = _range(name, value)
        else:
            fixed[name] = value
    if not varied:
        raise bad_value("space", sorted(space), f"a table in which one varies: NAME = {{{KINDS[0]} = [...]}}")
    return varied, fixed


def _range(name: str, value: dict[str, Any]) -> Range:
    key = f"space.{name}"
    if len(value) != 1:
        raise bad_value(key, value, f"a table of one of {', '.join(KINDS)}")
    ((kind, values),) = value.items()
    if kind not in KINDS:
        raise unknown_key(f"{key}.", kind, KINDS)
    if not isinstance(values, list) or not values:
        raise bad_value(f"{key}.{kind}", values, "a list")
    if kind in ("uniform", "loguniform"):
        numbers = all(isinstance(each, (int, float)) and not isinstance(each, bool) for each in values)
        low = 0 if kind == "loguniform" else -math.inf
        if not numbers or len(values) != 2 or not low < values[0] < values[1] < math.inf:
            above = " above 0" if kind == "loguniform" else ""
            raise bad_value(f"{key}.{kind}", values, f"[low, high] with low < high{above}")
    return Range(kind, tuple(values))


def _check_ends(sweep: Sweep) -> None:
    """Every listed value and both ends of every interval, each alone, so that no trial fails late."""
    first = {name: each.values[0] for name, each in sweep.space.items()}
    for name, each in sweep.space.items():
        for value in each.values:
            try:
                sweep.config(first | {name: value})
            except UserError as error:
                raise UserError(f"space.{name}: {shown(value)} is refused: {error}") from None
