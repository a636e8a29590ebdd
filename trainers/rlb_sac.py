"""RLB-SAC: independent soft actor-critic without memory, on one row of features per server.

The feed-forward learner that Distr-LB is compared with (Yao, Ding, Clausen, "Reinforced Cooperative Load
Balancing in Data Center", 2022; SAC: Haarnoja et al., 2018). Its rewards are Jain's index (`jain`) and the
product of normalised loads (`pbf`, there called G). Transitions are replayed one by one. This file tells the
whole algorithm; `session.py` runs, logs and saves it. What is said in distr_lb.py about the measure of the
reward, the discount and the critics holds here as well.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import nn
from torch.nn import functional as F
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.data.replay_buffers.samplers import RandomSampler

from steelyard import native
from steelyard.agents import export, gaussian
from steelyard.agents.critics import TwinCritic
from steelyard.agents.mlp_actor import MlpActor
from steelyard.agents.normaliser import Normaliser
from steelyard.envs.scenario import Scenario
from steelyard.trainers import checkpoint
from steelyard.trainers.rounds import (
    RewardScale,
    Round,
    check_game,
    check_losses,
    follow,
    learn,
    play,
    require,
)


@dataclass(frozen=True)
class RlbSac:
    """Hyper-parameters; `--set algo.NAME=VALUE` changes one."""

    input: str = "per_server"
    """`per_server`: one network on each server's row; `flat`: one on everything."""
    critic: str = "set"
    """`set`: one network shared by all servers, told which is which; `flat`: one on everything."""
    reward: str = "jain"
    """Kind of reward, jain or pbf in the paper; empty: the scenario's."""
    measure: str = "true"
    """Which loads the reward is over: true, durations or own; empty: the scenario's."""
    num_envs: int = 8
    """Episodes played side by side; learning happens between such rounds."""
    updates_per_episode: float = 10.0
    """Gradient steps per agent for every episode played."""
    batch_size: int = 192
    """Transitions per gradient step."""
    replay_steps: int = 100_000
    """Transitions kept per agent."""
    hidden: int = 32
    """Units of the actor's layers."""
    critic_hidden: int = 32
    """Units of the critics' layers."""
    actor_lr: float = 2e-5
    """Learning rate of the actor (Adam)."""
    critic_lr: float = 1e-3
    """Learning rate of the critics (Adam)."""
    alpha_lr: float = 1e-3
    """Learning rate of log alpha (Adam)."""
    alpha: float = 0.001
    """First temperature, for rewards of unit variance."""
    target_entropy: float = -1.0
    """Entropy per server that the temperature is tuned to."""
    gamma: float = 0.5
    """Discount per step."""
    tau: float = 0.05
    """Share of the critics that moves into their targets at a gradient step."""
    average: float = 0.998
    """Memory of the averaged actor, which is what is exported, per gradient step."""
    clip: float = 5.0
    """Normalised observations are limited to +-clip."""

    discrete = False

    def check(self) -> None:
        """UserError for values that make no sense."""
        for name in ("num_envs", "batch_size", "hidden", "critic_hidden", "replay_steps"):
            require(name, getattr(self, name), getattr(self, name) >= 1, "at least 1")
        for name in ("actor_lr", "critic_lr", "alpha_lr", "alpha", "clip", "updates_per_episode"):
            require(name, getattr(self, name), 0 < getattr(self, name) < math.inf, "a number above 0")
        for name in ("gamma", "tau", "average"):
            require(name, getattr(self, name), 0 <= getattr(self, name) < 1, "at least 0 and below 1")
        require("input", self.input, self.input in ("flat", "per_server"), "flat or per_server")
        require("critic", self.critic, self.critic in ("flat", "set"), "flat or set")


_NETS = ("actor", "critic", "target", "averaged")


class Agent:
    """One load balancer's learner; nothing in it knows of the others."""

    def __init__(self, config: RlbSac, num_servers: int, seed: int) -> None:
        self.config, self.num_servers = config, num_servers
        self.generator = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.actor = MlpActor(num_servers, input_mode=config.input, hidden=config.hidden, discrete=False)
            self.critic = TwinCritic(
                num_servers, kind=config.critic, hidden=config.critic_hidden, discrete=False
            )
        self.target, self.averaged = copy.deepcopy(self.critic), copy.deepcopy(self.actor)
        self.log_alpha = torch.tensor(math.log(config.alpha), requires_grad=True)
        self.optimisers = {
            "actor": torch.optim.Adam(self.actor.parameters(), lr=config.actor_lr, fused=True),
            "critic": torch.optim.Adam(self.critic.parameters(), lr=config.critic_lr, fused=True),
            "alpha": torch.optim.Adam([self.log_alpha], lr=config.alpha_lr, fused=True),
        }
        self.normaliser, self.scale = Normaliser(num_servers), RewardScale()
        storage = LazyTensorStorage(config.replay_steps)
        self.replay = TensorDictReplayBuffer(
            storage=storage, sampler=RandomSampler(), batch_size=config.batch_size
        )
        self.replay.set_rng(self.generator)
        self._take_statistics()

    def _take_statistics(self) -> None:
        mean, inverse = self.normaliser.vectors()
        self._mean, self._inverse = torch.from_numpy(mean), torch.from_numpy(inverse)

    def normalised(self, obs: torch.Tensor) -> torch.Tensor:
        """(obs - mean) / std, limited, exactly as the exported policy does it."""
        return ((obs - self._mean) * self._inverse).clamp(-self.config.clip, self.config.clip)

    @torch.no_grad()
    def act(self, obs: torch.Tensor) -> torch.Tensor:
        """Sampled actions (B, N) in [-1, 1] from obs (B, obs_dim)."""
        return gaussian.sample(self.actor(self.normalised(obs)), self.generator)[0]

    def remember(self, obs: torch.Tensor, action: torch.Tensor, reward: torch.Tensor) -> None:
        """Store episodes: obs (E, T+1, obs_dim) raw, action (E, T, N), reward (E, T)."""
        self.normaliser.update(obs.numpy())
        self._take_statistics()
        self.scale.update(reward)
        steps = {"obs": obs[:, :-1], "next": obs[:, 1:], "action": action, "reward": reward}
        flat = {name: value.flatten(0, 1).contiguous() for name, value in steps.items()}
        self.replay.extend(TensorDict(flat, batch_size=[reward.numel()]))

    def update(self) -> dict[str, float]:
        """One gradient step of critics, actor and temperature on a batch of transitions; what to log."""
        config, batch, alpha = self.config, self.replay.sample(), self.log_alpha.detach().exp()
        obs, after = self.normalised(batch["obs"]), self.normalised(batch["next"])
        with torch.no_grad():  # an episode only ever is truncated, so every tail counts
            action, log_density = gaussian.sample(self.actor(after), self.generator)
            tail = torch.minimum(*self.target(after, action)) - alpha * log_density
            goal = self.scale(batch["reward"]) + config.gamma * tail
        first, second = self.critic(obs, batch["action"])
        critic_loss = F.mse_loss(first, goal) + F.mse_loss(second, goal)
        self._descend("critic", critic_loss)
        action, log_density = gaussian.sample(self.actor(obs), self.generator)
        self._descend("actor", (alpha * log_density - torch.minimum(*self.critic(obs, action))).mean())
        entropy = -log_density.detach().mean()
        self._descend("alpha", self.log_alpha * (entropy - config.target_entropy * self.num_servers))
        with torch.no_grad():
            follow(self.target, self.critic, config.tau)
            follow(self.averaged, self.actor, 1 - config.average)
        return check_losses(
            {
                "critic_loss": critic_loss.item(),
                "entropy": entropy.item(),
                "alpha": alpha.item(),
                "q": first.detach().mean().item(),
            }
        )

    def _descend(self, name: str, loss: torch.Tensor) -> None:
        optimiser = self.optimisers[name]
        parameters = [p for group in optimiser.param_groups for p in group["params"]]
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.grad = gradient
        nn.utils.clip_grad_norm_(parameters, 10.0)
        optimiser.step()

    def state(self) -> dict[str, Any]:
        """All that the rest of the training depends on."""
        filled = len(self.replay)
        optimisers = {name: checkpoint.optimiser_state(each) for name, each in self.optimisers.items()}
        return {name: getattr(self, name).state_dict() for name in _NETS} | {
            "optimisers": optimisers,
            "log_alpha": self.log_alpha,
            "normaliser": self.normaliser.state(),
            "scale": dict(vars(self.scale)),
            "replay": self.replay.storage[:filled].to_dict() if filled else {},
            "cursor": int(self.replay.writer._cursor),
            "generator": self.generator.get_state(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on from `state()`."""
        for name in _NETS:
            getattr(self, name).load_state_dict(state[name])
        for name, optimiser in self.optimisers.items():
            checkpoint.load_optimiser(optimiser, state["optimisers"][name])
        with torch.no_grad():
            self.log_alpha.copy_(state["log_alpha"])
        self.normaliser.load({name: array.numpy() for name, array in state["normaliser"].items()})
        vars(self.scale).update(state["scale"])
        if state["replay"]:
            self.replay.extend(TensorDict(state["replay"], batch_size=[len(state["replay"]["reward"])]))
            self.replay.writer._cursor = state["cursor"]
        self.generator.set_state(state["generator"])
        self._take_statistics()


class RlbSacTrainer:
    """All agents on one scenario; a round is `num_envs` episodes played side by side, then learning."""

    def __init__(self, config: RlbSac, scenario: Scenario, seed: int, threads: int = 1) -> None:
        self.config, self.scenario, self.seed, self.threads = config, scenario, seed, threads
        torch.set_num_threads(1)  # the matrices are small; agents, not operations, run side by side
        config.check()
        check_game(config, scenario)
        seeds = np.random.SeedSequence(seed).generate_state(scenario.num_agents, np.uint64)
        self.agents = [Agent(config, scenario.num_servers, int(s >> 1)) for s in seeds]
        self.episodes = 0

    def play(self, seeds: Sequence[int]) -> Round:
        """One episode per seed with sampled actions, remembered by every agent; the records."""

        def act(obs: torch.Tensor) -> torch.Tensor:
            return torch.stack([agent.act(obs[:, index]) for index, agent in enumerate(self.agents)], 1)

        played, tape = play(self.scenario, seeds, act, self.config)
        for index, agent in enumerate(self.agents):
            agent.remember(*(tape[name][:, :, index] for name in ("obs", "action", "reward")))
        return played

    def round(self, episodes: int) -> Round:
        """Play `episodes` at once, learn from them; the records."""
        played = self.play([native.train_seed(self.seed, self.episodes + index) for index in range(episodes)])
        self.episodes += episodes
        steps = max(1, round(self.config.updates_per_episode * episodes))
        played.learning.update(learn(self.agents, steps, self.threads))
        return played

    def policy(self) -> bytes:
        """The policy file of the averaged actors, which act by their mean."""
        actors, normalisers = ([getattr(a, n) for a in self.agents] for n in ("averaged", "normaliser"))
        return export.policy_bytes(actors, normalisers, self.config.clip)

    def state(self) -> dict[str, Any]:
        """For a checkpoint between rounds."""
        return {"episodes": self.episodes, "agents": [agent.state() for agent in self.agents]}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from `state()`."""
        self.episodes = state["episodes"]
        for agent, mine in zip(self.agents, state["agents"], strict=True):
            agent.load(mine)
