"""An RLlib algorithm as the trainer of a session: rounds, policy file, checkpoint."""

from __future__ import annotations

import contextlib
import logging
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from steelyard.agents import export
from steelyard.agents.layout import central_bytes_per_step, observation_dim
from steelyard.envs.errors import UserError
from steelyard.envs.scenario import Scenario
from steelyard.trainers.rllib import build, nets
from steelyard.trainers.rllib.game import Game, fit
from steelyard.trainers.rllib.settings import Appo, Impala, Sac, Settings
from steelyard.trainers.rounds import Round, check_losses

RLLIB_FOLDER = "rllib"
"""RLlib's own part of a checkpoint."""
_PATIENCE = 1000  # iterations of an asynchronous algorithm without one finished episode
_LOGGED = {
    "ppo": ("policy_loss", "vf_loss", "entropy", "vf_explained_var"),
    "appo": ("policy_loss", "vf_loss", "entropy"),
    "impala": ("vf_loss", "entropy"),
    "sac": ("policy_loss", "qf_loss", "alpha_value", "qf_mean"),
}
_MAY_BE_NAN = ("vf_explained_var",)  # of a batch in which the targets do not vary


class RllibTrainer:
    """A scenario's game, learnt by an algorithm of RLlib; Ray must be connected."""

    def __init__(self, settings: Settings, scenario: Scenario, seed: int, env_runners: int = 0) -> None:
        settings.check(scenario)
        torch.set_num_threads(1)  # the matrices are small
        _silence()
        self.settings, self.scenario, self.episodes = settings, scenario, 0
        self.game, self.normaliser = fit(Game(scenario, settings, seed))
        config = build.algorithm_config(self.game, self.normaliser, env_runners)
        self.algorithm = config.build_algo()
        for folder in (Path(self.algorithm.logdir), Path(self.algorithm.logdir).parent):
            with contextlib.suppress(
                OSError
            ):  # RLlib's own folder of results under the home directory: empty
                folder.rmdir()
        self.averaged: dict[str, dict[str, torch.Tensor]] = {}
        self.rounds = 0

    def round(self, episodes: int) -> Round:
        """At least that many episodes and what RLlib learns from them; the records."""
        records: list[dict[str, Any]] = []
        result: dict[str, Any] = {}
        for _ in range(_PATIENCE):
            result = self.algorithm.train()
            found = self.algorithm.env_runner_group.foreach_env_runner(lambda runner: runner.take_records())
            records += [record for part in found for record in part]
            if sum(len(record["seeds"]) for record in records) >= episodes:
                break
        else:
            raise UserError("training: RLlib's env runners deliver no episodes; the last checkpoint is kept")
        played = _round_of(records)
        self.episodes += len(played.seeds)
        self.rounds += 1
        self._average()
        played.learning = _learning(result, self.game.policies, self._logged())
        played.bytes_exchanged = self._bytes(len(played.seeds))
        return played

    def module(self, policy: str) -> Any:
        """RLlib's module of a policy, as it was trained last."""
        return self.algorithm.get_module(policy)

    def actors(self) -> list[nets.Actor]:
        """One actor per policy, as they are evaluated and exported: of the last weights or their average."""
        found = []
        for policy in self.game.policies:
            module = self.module(policy)
            actor = nets.make_actor(module.model_config)
            actor.load_state_dict(self.averaged.get(policy) or module.actor.state_dict())
            found.append(actor)
        return found

    def policy(self) -> bytes:
        """The policy file."""
        actors = self.actors()
        if self.game.central:
            return export.central_policy_bytes(actors[0], self.normaliser, self.settings.clip)  # type: ignore[arg-type]
        return export.policy_bytes(actors, [self.normaliser] * len(actors), self.settings.clip)  # type: ignore[arg-type]

    def state(self) -> dict[str, Any]:
        """A tree for `checkpoint.save`; RLlib's own state goes beside it by `save_files`."""
        replay = self.algorithm.replay.state() if isinstance(self.settings, Sac) else None
        return {
            "episodes": self.episodes,
            "rounds": self.rounds,
            "averaged": self.averaged,
            "normaliser": self.normaliser.state(),
            "reward": [self.game.reward_mean, self.game.reward_scale],
            "replay": replay,
        }

    def save_files(self, folder: Path) -> None:
        """RLlib's checkpoint, in a folder of its own."""
        self.algorithm.save_to_path((folder / RLLIB_FOLDER).resolve())

    def load(self, state: dict[str, Any]) -> None:
        """Go on from `state()`; `load_files` restores RLlib's part."""
        self.episodes, self.rounds, self.averaged = state["episodes"], state["rounds"], state["averaged"]
        self.normaliser.load({name: array.numpy() for name, array in state["normaliser"].items()})
        if state["replay"] is not None:
            self.algorithm.replay.load(state["replay"])

    def load_files(self, folder: Path) -> None:
        """RLlib's own state, and the seeds that follow."""
        self.algorithm.restore_from_path((folder / RLLIB_FOLDER).resolve())
        start = self.episodes
        self.algorithm.env_runner_group.foreach_env_runner(lambda runner: runner.start_at(start))

    def stop(self) -> None:
        """Ends env runners and learners."""
        self.algorithm.stop()

    def _average(self) -> None:
        if not self.settings.average:
            return
        share = max(1 - self.settings.average, 4 / (self.rounds + 4))  # Shamir, Zhang 2013, eq. (4), eta = 3
        for policy in self.game.policies:
            last = {
                name: each.detach().clone() for name, each in self.module(policy).actor.named_parameters()
            }
            kept = self.averaged.setdefault(policy, last)
            for name, value in last.items():
                kept[name] = torch.lerp(kept[name], value, share)

    def _logged(self) -> tuple[str, ...]:
        kinds = {Sac: "sac", Appo: "appo", Impala: "impala"}
        return _LOGGED[kinds.get(type(self.settings), "ppo")]

    def _bytes(self, episodes: int) -> int:
        """What agents would send for these episodes, as float32: see docs/rllib.md."""
        agents, servers = self.scenario.num_agents, self.scenario.num_servers
        if self.game.central:
            return episodes * self.game.steps * central_bytes_per_step(agents, servers)
        if self.settings.policies == "own" and not self.settings.sees_state:
            return 0
        seen = observation_dim(servers)
        trajectory = (self.game.steps + 1) * seen + self.game.steps * (servers + 1)
        weights = sum(p.numel() for p in self.module(self.game.policies[0]).actor.parameters())
        return 4 * agents * (episodes * trajectory + weights)


def _round_of(records: list[dict[str, Any]]) -> Round:
    names = records[0]["stats"]
    return Round(
        seeds=[seed for record in records for seed in record["seeds"]],
        stats={name: np.concatenate([record["stats"][name] for record in records]) for name in names},
        returns=np.concatenate([record["returns"] for record in records]),
        weights=np.concatenate([record["weights"] for record in records]),
        cpu_s=sum(record["cpu_s"] for record in records),
    )


def _learning(result: dict[str, Any], policies: Sequence[str], names: Sequence[str]) -> dict[str, float]:
    """What RLlib tells of the last gradient step, as NAME_POLICY; NaN for what it has not told yet."""
    found, told = {}, {}
    for index, policy in enumerate(policies):
        of_policy = result.get("learners", {}).get(policy, {})
        for name in names:
            value = of_policy.get(name)
            found[f"{name}_{index}"] = math.nan if value is None else float(value)
            if value is not None and name not in _MAY_BE_NAN:
                told[f"{name}_{index}"] = float(value)
    check_losses(told)
    return found


def _silence() -> None:
    for name in ("ray", "ray.rllib", "ray.tune"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"ray\..*")
    warnings.filterwarnings("ignore", category=DeprecationWarning)
