"""Runs of the RLlib engine that last seconds, for the tests of it."""

import csv
import json
import sys
import time
from pathlib import Path
from typing import Any

from steelyard.envs.scenario import Scenario
from steelyard.trainers import cli
from steelyard.trainers.rllib import settings

HYPER = {"num_envs": 4, "fit_episodes": 4, "hidden": 8, "critic_hidden": 16, "sequence": 8}
PPO, SAC = {"minibatch": 40, "epochs": 2}, {"updates_per_episode": 1.0, "batch_size": 32}
GRU = {"recurrent": True, "input": "shared"}
SHORT = ["--set", "episode.horizon_s=10"]
SCENARIO = Scenario.load("cluster-a-cpu", ["episode.horizon_s=10"])


def set_options(hyper: dict[str, object]) -> list[str]:
    return [word for name, value in hyper.items() for word in ("--set", f"algo.{name}={json.dumps(value)}")]


def train(run: Path, algo: str, episodes: int, hyper: dict[str, object], *more: str) -> int:
    family = SAC if algo == "sac" else PPO if algo in ("ippo", "mappo") else {}
    line = ["train", "--engine", "rllib", "--algo", algo, "--scenario", "cluster-a-cpu", "--run", str(run)]
    words = set_options({**HYPER, **family, **hyper})
    return cli.main([*line, "--episodes", str(episodes), "--quiet", *SHORT, *words, *more])


def rows(run: Path, name: str) -> list[dict[str, str]]:
    with open(run / f"{name}.csv") as stream:
        return list(csv.DictReader(stream))


def trainer(algo: str, seed: int = 0, **hyper: object) -> Any:
    from steelyard.trainers.rllib.trainer import RllibTrainer

    family = SAC if algo == "sac" else PPO
    made = settings.find_entry(algo).settings(**{**HYPER, **family, **hyper})
    return RllibTrainer(made, SCENARIO, seed)


def arguments(run: Path, algo: str, episodes: int, *more: str) -> list[str]:
    words = [*SHORT, *set_options({**HYPER, **(PPO if algo == "ippo" else {})})]
    line = ["train", "--engine", "rllib", "--algo", algo, "--scenario", "cluster-a-cpu", "--run", str(run)]
    command = [sys.executable, "-m", "steelyard.trainers.cli", *line, "--episodes", str(episodes)]
    return [*command, *words, *more]


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 120
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert path.exists()
