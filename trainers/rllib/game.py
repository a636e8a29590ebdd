"""The game as RLlib plays it: agents, policies, spaces, and the statistics fixed before training starts."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from steelyard import native
from steelyard.agents.layout import DISCRETE_ACTIONS
from steelyard.agents.normaliser import Normaliser
from steelyard.envs.batch import LoadBalanceBatch
from steelyard.envs.scenario import Scenario
from steelyard.envs.spaces import action_space, observation_space
from steelyard.trainers.rllib.settings import Settings, episode_steps

CENTRAL, SHARED = "central", "shared"
OWN_KEY, STATE_KEY = "own", "state"
_FIT_RUN = 0x5EED_0F17_0000  # run seed of the episodes that fit the statistics; training runs have small ones
_FIT_SPREAD = 0.3  # standard deviation of their actions: weights within a factor of 1.5 of each other


@dataclass(frozen=True)
class Game:
    """What env runners and modules must know; travels to other processes."""

    scenario: Scenario
    settings: Settings
    seed: int
    reward_mean: float = 0.0
    reward_scale: float = 1.0

    @property
    def central(self) -> bool:
        """Whether one agent sees and sets all."""
        return self.settings.policies == "central"

    @property
    def agents(self) -> list[str]:
        """Agents by name: `lb_0`, ..., or `central` alone."""
        return [CENTRAL] if self.central else [f"lb_{i}" for i in range(self.scenario.num_agents)]

    @property
    def policies(self) -> list[str]:
        """Policies (RLlib's modules) by name."""
        return [SHARED] if self.settings.policies == "shared" else self.agents

    def policy_of(self, agent: str) -> str:
        """The policy that an agent follows."""
        return SHARED if self.settings.policies == "shared" else agent

    @property
    def steps(self) -> int:
        """Steps of an episode."""
        return episode_steps(self.scenario)

    @property
    def observation_space(self) -> spaces.Space:
        """Of one agent: its own observation or, if critics see the state, a Dict of that and the state."""
        servers, balancers = self.scenario.num_servers, self.scenario.num_agents
        own = observation_space(servers, balancers if self.central else 1)
        if not self.settings.sees_state:
            return own
        return spaces.Dict({OWN_KEY: own, STATE_KEY: observation_space(servers, balancers)})

    @property
    def action_space(self) -> spaces.Space:
        """Of one agent."""
        balancers = self.scenario.num_agents if self.central else 1
        return action_space(self.scenario.num_servers, balancers, discrete=self.settings.discrete)

    def batch(self, worlds: int) -> LoadBalanceBatch:
        """That many worlds of the game."""
        return LoadBalanceBatch(
            self.scenario,
            worlds,
            reward=self.settings.reward or None,
            measure=self.settings.measure or None,
            discrete=self.settings.discrete,
            autoreset=False,
        )

    def paid(self, reward: NDArray[np.float32]) -> NDArray[np.float32]:
        """Rewards (B, T, M) scaled and shaped, (B, T, agents): what the learners are given."""
        scaled = (reward - self.reward_mean) * self.reward_scale
        if self.central:
            scaled = scaled.mean(axis=2, keepdims=True)
        if self.settings.shaping:
            before = np.concatenate([scaled[:, :1], scaled[:, :-1]], axis=1)
            scaled = scaled + self.settings.shaping * (self.settings.gamma * scaled - before)
        return scaled.astype(np.float32)


def fit(game: Game) -> tuple[Game, Normaliser]:
    """The game with the scale of its rewards, and the normaliser of observations, from random play.

    Each of the episodes keeps random weights, drawn around equal ones, with a little jitter. The statistics
    stay as they are from then on: several env runners need not agree on running ones, and what the policy is
    trained on is what it is exported with.
    """
    settings, servers = game.settings, game.scenario.num_servers
    worlds = settings.fit_episodes
    batch, normaliser = game.batch(worlds), Normaliser(servers)
    draw = np.random.default_rng(game.seed)
    shape = (worlds, game.scenario.num_agents, servers)
    kept = draw.normal(0.0, _FIT_SPREAD, shape)
    normaliser.update(batch.reset(seeds=[native.train_seed(_FIT_RUN + game.seed, i) for i in range(worlds)]))
    rewards = []
    for _ in range(game.steps):
        action = kept + draw.normal(0.0, _FIT_SPREAD / 3, shape)
        seen, reward, _ = batch.step(_as_actions(action, settings.discrete))
        normaliser.update(seen)
        rewards.append(reward.copy())
    paid = np.stack(rewards, 1).astype(np.float64)
    scale = 1 / max(float(paid.std()), 1e-6)
    return replace(game, reward_mean=float(paid.mean()), reward_scale=scale), normaliser


def _as_actions(action: NDArray[np.float64], discrete: bool) -> NDArray[np.float32] | NDArray[np.int64]:
    if not discrete:
        return np.clip(action, -1, 1).astype(np.float32)
    return np.abs(action[..., None] - np.array(DISCRETE_ACTIONS)).argmin(-1)
