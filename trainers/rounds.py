"""What every algorithm gives the training session: the records of a round, and checks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from steelyard.agents.layout import DISCRETE_ACTIONS
from steelyard.envs.batch import LoadBalanceBatch
from steelyard.envs.errors import UserError
from steelyard.envs.rewards import check_reward
from steelyard.envs.scenario import Scenario


@dataclass
class Round:
    """Episodes played side by side (B of them, M agents, N servers), and what was learnt from them."""

    seeds: Sequence[int]
    stats: dict[str, NDArray[Any]]  # of the batch: sojourn_mean_s, flows, rejected, jain_mean, each (B,)
    returns: NDArray[np.float32]  # (B, M) undiscounted sums of rewards
    weights: NDArray[np.float32]  # (B, N) geometric means over steps and agents
    learning: dict[str, float] = field(default_factory=dict)  # means over the round's gradient steps
    bytes_exchanged: int = 0  # what agents would send to train together: trajectories, parameters
    cpu_s: float = 0.0  # spent on it by other processes


class Trainer(Protocol):
    """An algorithm on a scenario, between rounds."""

    episodes: int

    def round(self, episodes: int) -> Round:
        """Play that many episodes and learn from them."""

    def policy(self) -> bytes:
        """The policy file of what has been learnt."""

    def state(self) -> dict[str, Any]:
        """A tree for `checkpoint.save`."""

    def load(self, state: dict[str, Any]) -> None:
        """Go on from `state()`."""


@runtime_checkable
class KeepsFiles(Protocol):
    """A trainer that keeps files of its own in a checkpoint."""

    def save_files(self, folder: Path) -> None:
        """Add them to the folder of a checkpoint in the making."""

    def load_files(self, folder: Path) -> None:
        """Go on from them, after `load`."""


class GameConfig(Protocol):
    """The hyper-parameters that say which game is played."""

    @property
    def reward(self) -> str: ...
    @property
    def measure(self) -> str: ...
    @property
    def discrete(self) -> bool: ...


class Learner(Protocol):
    """An agent that learns by itself."""

    def update(self) -> dict[str, float]:
        """One gradient step; what to log."""


class RewardScale:
    """Running mean and variance of one agent's reward, so that alpha means the same in every scenario."""

    def __init__(self) -> None:
        self.count, self.mean, self.variance = 0.0, 0.0, 1.0

    def update(self, reward: torch.Tensor) -> None:
        """Add rewards of any shape."""
        new, count = reward.double(), float(reward.numel())
        total, delta = self.count + count, float(new.mean()) - self.mean
        spread = self.variance * self.count + float(new.var(correction=0)) * count
        self.variance = (spread + delta**2 * self.count * count / total) / total
        self.mean += delta * count / total
        self.count = total

    def __call__(self, reward: torch.Tensor) -> torch.Tensor:
        return (reward - self.mean) / math.sqrt(max(self.variance, 1e-12))


def shaped(reward: torch.Tensor, gamma: float, k: float) -> torch.Tensor:
    """r_t + k (gamma r_t - r_{t-1}), potential-based (Ng, Harada, Russell 1999): rewards (L+1, ..), the first
    one from the step before -> (L, ..).
    """
    return reward[1:] + k * (gamma * reward[1:] - reward[:-1])


def check_game(config: GameConfig, scenario: Scenario) -> None:
    """UserError for a reward or measure that does not exist."""
    check_reward(config.reward or scenario.reward.kind, config.measure or scenario.reward.measure)


MakeBatch = Callable[[Scenario, int, GameConfig], Any]
"""Gives a batch of so many worlds of the scenario, as LoadBalanceBatch is one."""


def simulated(scenario: Scenario, worlds: int, config: GameConfig) -> LoadBalanceBatch:
    """Worlds of the simulator."""
    return LoadBalanceBatch(
        scenario,
        worlds,
        reward=config.reward or None,
        measure=config.measure or None,
        discrete=config.discrete,
        autoreset=False,
    )


def play(
    scenario: Scenario,
    seeds: Sequence[int],
    act: Callable[[torch.Tensor], torch.Tensor],
    config: GameConfig,
    watch: Callable[[LoadBalanceBatch], torch.Tensor] | None = None,
    make: MakeBatch = simulated,
) -> tuple[Round, dict[str, torch.Tensor]]:
    """One episode per seed side by side. act: obs (B, M, obs_dim) -> actions (B, M, N).

    The records, and obs (B, T+1, M, obs_dim), action (B, T, M, N), reward (B, T, M); with `watch`, what it
    saw, (B, ..), as world (B, T+1, ..). UserError if any is NaN.
    """
    batch = make(scenario, len(seeds), config)
    obs = torch.from_numpy(batch.reset(seeds=seeds).copy())
    tape: dict[str, list[torch.Tensor]] = {"obs": [obs], "action": [], "reward": []}
    if watch is not None:
        tape["world"] = [watch(batch)]
    over = False
    while not over:
        action = act(obs)
        seen, reward, truncated = batch.step(action.numpy())
        obs, over = torch.from_numpy(seen.copy()), bool(truncated.all())
        for name, value in (("obs", obs), ("action", action), ("reward", torch.from_numpy(reward.copy()))):
            tape[name].append(value)
        if watch is not None:
            tape["world"].append(watch(batch))
    joint = {name: torch.stack(parts, 1) for name, parts in tape.items()}
    check_finite(joint)
    value = torch.tensor(DISCRETE_ACTIONS)[joint["action"]] if config.discrete else joint["action"]
    weights = torch.exp2(2 * value.mean((1, 2))).numpy()
    return Round(seeds, batch.episode_stats(), joint["reward"].sum(1).numpy(), weights), joint


def learn(agents: Sequence[Learner], steps: int, threads: int) -> dict[str, float]:
    """`steps` gradient steps of every agent; means of what they log, as NAME_AGENT.

    Agents are independent, so threads run them side by side without changing the result.
    """
    with ThreadPoolExecutor(threads) as pool:
        found = list(pool.map(lambda agent: mean_of([agent.update() for _ in range(steps)]), agents))
    return {f"{key}_{index}": value for index, part in enumerate(found) for key, value in part.items()}


def remaining_time(batch: LoadBalanceBatch) -> torch.Tensor:
    """(B, N) true remaining time of the servers [s], the `true` global state of central critics."""
    return torch.from_numpy(batch.remaining_time().astype(np.float32))


def follow(slow: torch.nn.Module, fast: torch.nn.Module, share: float) -> None:
    """slow += share * (fast - slow), parameter by parameter."""
    mine = [parameter.data for parameter in slow.parameters()]
    torch._foreach_lerp_(mine, [parameter.data for parameter in fast.parameters()], share)


def check_losses(found: dict[str, float]) -> dict[str, float]:
    """`found`; UserError if a number of it is NaN or infinite."""
    if not all(math.isfinite(number) for number in found.values()):
        raise UserError(f"training: loss is not finite ({found}); the last checkpoint is kept")
    return found


def require(name: str, value: object, allowed: bool, text: str) -> None:
    """UserError naming the hyper-parameter unless `allowed`."""
    if not allowed:
        raise UserError(f"algo.{name} = {value!r}: must be {text}")


def check_finite(played: dict[str, torch.Tensor]) -> None:
    """UserError if anything that was seen or done is NaN or infinite."""
    for name, values in played.items():
        if values.is_floating_point() and not bool(torch.isfinite(values).all()):
            raise UserError(f"training: {name} holds NaN or infinity; the last checkpoint is kept")


def mean_of(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    """Mean of each entry."""
    return {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}
