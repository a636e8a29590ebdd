"""The learners by name: what `steelyard train --algo` takes, and the file and classes behind each name."""

from __future__ import annotations

import dataclasses
import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from steelyard.envs.errors import UserError, shown, unknown, unknown_key
from steelyard.envs.worlds import AnyScenario, world

if TYPE_CHECKING:
    from steelyard.trainers.rounds import Trainer

HYPER = "algo."
"""Prefix of hyper-parameters among --set."""


@dataclass(frozen=True)
class Algorithm:
    """A learner: one readable file that holds a dataclass of hyper-parameters and a Trainer."""

    module: str
    config: str
    trainer: str
    summary: str
    world: str = "cluster"

    def config_class(self) -> type:
        """The dataclass of hyper-parameters; importing it imports torch."""
        return getattr(importlib.import_module(self.module), self.config)

    def trainer_class(self) -> type:
        """The Trainer, made from (config, scenario, seed, threads)."""
        return getattr(importlib.import_module(self.module), self.trainer)


ALGORITHMS = {
    "distr-lb": Algorithm(
        "steelyard.trainers.distr_lb",
        "DistrLb",
        "DistrLbTrainer",
        "independent SAC with recurrent actors, one per balancer, nothing shared or sent",
    ),
    "centr-lb": Algorithm(
        "steelyard.trainers.centr_lb",
        "CentrLb",
        "CentrLbTrainer",
        "one SAC that sees all balancers and sets all weights; observations and weights travel at every step",
    ),
    "rlb-sac": Algorithm(
        "steelyard.trainers.rlb_sac",
        "RlbSac",
        "RlbSacTrainer",
        "independent SAC without memory, on one row of features per server",
    ),
    "ippo": Algorithm(
        "steelyard.trainers.ppo",
        "Ippo",
        "PpoTrainer",
        "independent PPO, one actor and one critic per balancer, nothing shared or sent",
    ),
    "mappo": Algorithm(
        "steelyard.trainers.ppo",
        "Mappo",
        "PpoTrainer",
        "PPO around a central critic that sees all observations; central training",
    ),
    "qmix": Algorithm(
        "steelyard.trainers.qmix",
        "Qmix",
        "QmixTrainer",
        "QMIX: recurrent agents with discrete weights, values mixed by a hypernetwork; central training",
    ),
    "vdn": Algorithm("steelyard.trainers.qmix", "Vdn", "QmixTrainer", "VDN: QMIX with the sum for a mixer"),
    "masac": Algorithm(
        "steelyard.trainers.masac",
        "Masac",
        "MasacTrainer",
        "SAC with a central critic, decentralised actors; central training",
    ),
    "maddpg": Algorithm(
        "steelyard.trainers.maddpg",
        "Maddpg",
        "MaddpgTrainer",
        "deterministic actors with a central critic; central training",
    ),
    "malcolm": Algorithm(
        "steelyard.trainers.consensus_ac",
        "Malcolm",
        "MalcolmTrainer",
        "racks: linear actors that migrate and steal, critics in consensus, learning as the rack runs",
        world="rack",
    ),
}


def find_algorithm(name: str) -> Algorithm:
    """The learner of that name; UserError with the names there are."""
    if name not in ALGORITHMS:
        raise unknown("--algo", name, ALGORITHMS)
    return ALGORITHMS[name]


def make_config(kind: type, hyper: dict[str, Any]) -> Any:
    """The algorithm's dataclass with `hyper` in place of its defaults, typed as they are."""
    defaults = {each.name: each.default for each in dataclasses.fields(kind)}
    checked = {}
    for name, value in hyper.items():
        if name not in defaults:
            raise unknown_key(HYPER, name, defaults)
        wanted = type(defaults[name])
        if wanted is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if type(value) is not wanted:
            words = {bool: "true or false", int: "a whole number", float: "a number", str: "a word"}
            raise UserError(f"algo.{name} = {shown(value)}: must be {words[wanted]}")
        checked[name] = value
    return kind(**checked)


def make_trainer(
    name: str, scenario: AnyScenario, hyper: dict[str, Any], seed: int, threads: int
) -> tuple[Any, Trainer]:
    """The algorithm's configuration and trainer."""
    algorithm = find_algorithm(name)
    if algorithm.world != world(scenario):
        fit = ", ".join(key for key, each in ALGORITHMS.items() if each.world == world(scenario))
        found = f"{scenario.name!r} is of the world {world(scenario)!r}"
        raise UserError(f"--algo: {name!r} plays no {world(scenario)}, and {found}; use one of {fit}")
    config = make_config(algorithm.config_class(), hyper)
    return config, algorithm.trainer_class()(config, scenario, seed, threads)
