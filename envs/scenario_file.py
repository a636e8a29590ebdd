"""Scenario files: where the named ones are, how any is read, and of which world it is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from steelyard.envs.errors import UserError, bad_value, unknown
from steelyard.envs.toml_text import Tree, parse_toml

CLUSTER, RACK = "cluster", "rack"
WORLDS = (CLUSTER, RACK)
"""Worlds that a scenario can be of; a file without `scenario.world` is of the first."""
_SCENARIOS = Path(__file__).parent / "scenarios"
_MAX_FILE_BYTES = 16_000_000


@dataclass(frozen=True)
class ScenarioFile:
    """What a scenario file holds: its tree, the folder of relative files, a name, and its world."""

    tree: Tree
    base: Path
    name: str
    world: str


def named_scenarios(world: str) -> dict[str, Path]:
    """Files of the scenarios of a world that come with the project, by name."""
    folder = _SCENARIOS if world == CLUSTER else _SCENARIOS / world
    return {file.stem: file for file in sorted(folder.glob("*.toml"), key=lambda file: file.stem)}


def read_scenario(source: str | Path, worlds: Iterable[str] = WORLDS) -> ScenarioFile:
    """A named scenario or a TOML file; names of `worlds` are offered for a wrong one. Raises UserError."""
    name, path = str(source), Path(source)
    offered = {name: file for world in worlds for name, file in named_scenarios(world).items()}
    known = {name: file for world in WORLDS for name, file in named_scenarios(world).items()}
    if name in known:
        path = known[name]
    elif path.suffix != ".toml" and len(path.parts) == 1:
        raise unknown("scenario", name, offered)
    try:
        with open(path, "rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(
            f"scenario {name}: cannot be read ({reason}); must be a TOML file or a name"
        ) from None
    if len(data) > _MAX_FILE_BYTES:
        raise UserError(f"scenario {name}: is longer than {_MAX_FILE_BYTES} bytes; must be a TOML file")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise UserError(f"scenario {name}: byte {error.start} is not UTF-8; must be a TOML file") from None
    tree = parse_toml(text, f"scenario {name}")
    world = world_of(tree)
    if world == CLUSTER and isinstance(tree.get("scenario"), dict):
        tree["scenario"].pop("world", None)  # what it is anyway
    return ScenarioFile(tree, path.parent, path.stem, world)


def world_of(tree: Tree) -> str:
    """The world that a tree declares. Raises UserError for one that there is not."""
    about = tree.get("scenario") if isinstance(tree, dict) else None
    world = about.get("world", CLUSTER) if isinstance(about, dict) else CLUSTER
    if world not in WORLDS:
        raise bad_value("scenario.world", world, f"one of {', '.join(WORLDS)}")
    return world


def refuse_world(name: str, world: str, wanted: str) -> UserError:
    """The error for a scenario of another world than the one that is wanted."""
    return UserError(f"scenario {name}: is of the world {world!r}; this needs one of the world {wanted!r}")
