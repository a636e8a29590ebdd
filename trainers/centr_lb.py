"""Centr-LB: one soft actor-critic that sees every balancer's observation and sets every balancer's weights.

The centralised rival of Distr-LB (Yao, Ding, "Learning Distributed and Fair Policies for Network Load
Balancing as Markov Potential Game", NeurIPS 2022, Sec. 5; SAC: Haarnoja et al., 2018; Christodoulou, "Soft
Actor-Critic for Discrete Action Settings", 2019). This file tells the whole algorithm; `session.py` runs,
logs and saves it.

One agent plays `envs.central`: its observation is that of the M balancers end to end, its action their M x N
weights, its reward the mean of theirs, which over the true remaining time is one team reward, the same for
all. There is no game left between agents, and no noise from others that learn; what it costs is traffic.
Every step, in training *and in operation*, moves M observations of 12 N + 5 numbers up and M x N weights
down, 4 bytes each: 4 M (13 N + 5) bytes a step, 872 for 2 balancers and 8 servers, for as long as the policy
serves. Distr-LB moves none, in either. `Round.bytes_exchanged` counts the traffic of training. The simulator
delivers it at once; `control.actuation_delay_s` delays the weights.

What distr_lb.py says of the reward, the discount, shaping, centred actions, constants, rates and temperature
was found to hold here as well. What differs:

- The actor runs one network on a row per server that holds the balancers' mean and each one's own features,
  and gives that server's weight at every balancer; there is a constant for each balancer and server.
- Noise: M N exploring actions share one reward. Each balancer has about 1 / M of the flows, so an action
  moves the reward 1 / M as much as in a pool of one balancer.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from steelyard import native
from steelyard.agents import export, gaussian
from steelyard.agents.central import CentralActor, CentralTwin
from steelyard.agents.layout import central_bytes_per_step
from steelyard.agents.normaliser import Normaliser
from steelyard.envs.scenario import Scenario
from steelyard.trainers import checkpoint
from steelyard.trainers.replay import SequenceReplay
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
class CentrLb:
    """Hyper-parameters; `--set algo.NAME=VALUE` changes one. Defaults are what was found to learn best."""

    discrete: bool = False
    """Weights {1, 1.5, 2} by one categorical head per balancer and server instead of continuous ones."""
    reward: str = "log_vbf"
    """Kind of reward; empty: the scenario's. The agent is paid the mean over balancers."""
    measure: str = "true"
    """Which loads the reward is over: true, durations or own; empty: the scenario's."""
    num_envs: int = 8
    """Episodes played side by side; learning happens between such rounds."""
    updates_per_episode: float = 10.0
    """Gradient steps for every episode played."""
    batch_size: int = 24
    """Chunks per gradient step."""
    chunk: int = 12
    """Steps per chunk, burn-in included."""
    burn_in: int = 4
    """First steps of a chunk that only renew the recurrent state."""
    replay_episodes: int = 3000
    """Episodes kept."""
    hidden: int = 16
    """Units of the actor's layers, per server."""
    critic_hidden: int = 32
    """Units of the critics' layers."""
    actor_lr: float = 2e-5
    """Learning rate of the actor (Adam), but for:"""
    bias_lr: float = 2e-4
    """Learning rate of its constants: the bias of the head and those of balancers and servers."""
    critic_lr: float = 1e-3
    """Learning rate of the critics (Adam)."""
    alpha_lr: float = 1e-3
    """Learning rate of log alpha (Adam)."""
    alpha: float = 0.001
    """First temperature, for rewards of unit variance."""
    target_entropy: float = -1.0
    """Entropy per balancer and server that the temperature is tuned to."""
    target_entropy_discrete: float = 0.3
    """The same for discrete heads, as a share of the largest, log 3."""
    gamma: float = 0.5
    """Discount per step."""
    shaping: float = 1.2
    """k of the shaping by the last reward; 0 turns it off."""
    tau: float = 0.05
    """Share of the critics that moves into their targets at a gradient step."""
    decay_episodes: float = 100.0
    """Episodes after which the actor's rates have halved: they fall as 1 / (1 + episodes / this)."""
    average: float = 0.999
    """Longest memory of the averaged actor, per gradient step; before, it spans the last quarter of the
    run."""
    clip: float = 5.0
    """Normalised observations are limited to +-clip."""
    grad_clip: float = 1.0
    """Largest norm of the actor's gradient; ten times that for the critics."""

    def check(self, steps: int) -> None:
        """UserError for values that make no sense with episodes of `steps` steps."""
        for name in ("num_envs", "batch_size", "hidden", "critic_hidden", "replay_episodes"):
            require(name, getattr(self, name), getattr(self, name) >= 1, "at least 1")
        for name in (*_RATES, "alpha", "clip", "grad_clip", "decay_episodes", "updates_per_episode"):
            require(name, getattr(self, name), 0 < getattr(self, name) < math.inf, "a number above 0")
        for name in ("gamma", "tau", "average"):
            require(name, getattr(self, name), 0 <= getattr(self, name) < 1, "at least 0 and below 1")
        require("chunk", self.chunk, 2 <= self.chunk <= steps, f"2 to {steps}, the steps of an episode")
        require("burn_in", self.burn_in, 0 <= self.burn_in < self.chunk, f"0 to {self.chunk - 1}")


_RATES = ("actor_lr", "bias_lr", "critic_lr", "alpha_lr")
_NETS = ("actor", "critic", "target", "averaged")


class Agent:
    """The learner. M balancers, N servers; observations (.., M obs_dim), actions (.., M N)."""

    def __init__(self, config: CentrLb, num_agents: int, num_servers: int, steps: int, seed: int) -> None:
        self.config, self.num_agents, self.num_servers = config, num_agents, num_servers
        self.generator = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            size = (num_agents, num_servers)
            self.actor = CentralActor(*size, hidden=config.hidden, discrete=config.discrete)
            self.critic = CentralTwin(*size, hidden=config.critic_hidden, discrete=config.discrete)
        self.target, self.averaged = copy.deepcopy(self.critic), copy.deepcopy(self.actor)
        self.log_alpha = torch.tensor(math.log(config.alpha), requires_grad=True)
        slow, fast = self.actor.slow_and_fast()
        rates: list[dict[str, Any]] = [{"params": slow}, {"params": fast, "lr": config.bias_lr}]
        self.optimisers = {
            "actor": torch.optim.Adam(rates, lr=config.actor_lr, fused=True),
            "critic": torch.optim.Adam(self.critic.parameters(), lr=config.critic_lr, fused=True),
            "alpha": torch.optim.Adam([self.log_alpha], lr=config.alpha_lr, fused=True),
        }
        self.normaliser, self.scale, self.steps_done = Normaliser(num_servers), RewardScale(), 0
        stride = max(config.burn_in, 1)
        self.replay = SequenceReplay(
            config.replay_episodes, steps, config.chunk, stride, config.batch_size, self.generator
        )
        self._take_statistics()

    def _take_statistics(self) -> None:
        """Balancers share statistics, as servers do: what differs between them is to be seen."""
        tiled = (np.tile(vector, self.num_agents) for vector in self.normaliser.vectors())
        self._mean, self._inverse = (torch.from_numpy(vector) for vector in tiled)

    def normalised(self, obs: torch.Tensor) -> torch.Tensor:
        """(obs - mean) / std, limited, exactly as the exported policy does it."""
        return ((obs - self._mean) * self._inverse).clamp(-self.config.clip, self.config.clip)

    @torch.no_grad()
    def act(self, obs: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Sampled actions (B, M N), in [-1, 1] or choice indices, and the next state, from obs (B, M
        obs_dim)."""
        output = self.actor(self.normalised(obs).unsqueeze(0), state)
        head = output.head[0]
        if self.config.discrete:
            chance = head.softmax(-1).flatten(0, 1)
            return torch.multinomial(chance, 1, generator=self.generator).view(head.shape[:-1]), output.state
        return gaussian.sample(head, self.generator)[0], output.state

    def remember(
        self, obs: torch.Tensor, action: torch.Tensor, reward: torch.Tensor, state: torch.Tensor
    ) -> None:
        """Store episodes (shapes in SequenceReplay.add) and take their statistics into the normalisers."""
        self.normaliser.update(obs.unflatten(-1, (self.num_agents, -1)).numpy())
        self._take_statistics()
        self.scale.update(reward)
        self.replay.add(obs, action, reward, state)

    def slow_down(self, episodes: int) -> None:
        """Set the actor's rates for the time after that many episodes."""
        share = 1 / (1 + episodes / self.config.decay_episodes)
        slow, fast = self.optimisers["actor"].param_groups
        slow["lr"], fast["lr"] = self.config.actor_lr * share, self.config.bias_lr * share

    def update(self) -> dict[str, float]:
        """One gradient step of critics, actor and temperature on a batch of chunks; what to log."""
        config, burn_in = self.config, self.config.burn_in
        obs, action, reward, state = self.replay.sample()
        obs, reward = self.normalised(obs), self._shaped(reward)[burn_in:]
        with torch.no_grad():
            state = self.actor(obs[:burn_in], state).state if burn_in else state
        obs, action = obs[burn_in:], action[burn_in:]
        choose = self._discrete if config.discrete else self._continuous
        critic_loss, actor_loss, entropy, value = choose(obs, action, reward, self.actor(obs, state).head)
        self._descend("critic", critic_loss)
        self._descend("actor", actor_loss())
        self._descend("alpha", self.log_alpha * (entropy - self.entropy_goal))
        with torch.no_grad():
            follow(self.target, self.critic, config.tau)
            self.steps_done += 1
            share = max(1 - config.average, 4 / (self.steps_done + 4))  # Shamir, Zhang 2013, eq. (4), eta = 3
            follow(self.averaged, self.actor, share)
        return check_losses(
            {
                "critic_loss": critic_loss.item(),
                "entropy": entropy.item(),
                "alpha": self.log_alpha.exp().item(),
                "q": value.item(),
            }
        )

    def _shaped(self, reward: torch.Tensor) -> torch.Tensor:
        """(L+1, B) rewards, the first one from the step before the chunk -> (L, B) scaled and shaped."""
        scaled, k = self.scale(reward), self.config.shaping
        return scaled[1:] + k * (self.config.gamma * scaled[1:] - scaled[:-1])

    def _continuous(
        self, obs: torch.Tensor, action: torch.Tensor, reward: torch.Tensor, head: torch.Tensor
    ) -> tuple[torch.Tensor, Callable[[], torch.Tensor], torch.Tensor, torch.Tensor]:
        """Critic loss, actor loss (for after the critics' step), entropy, mean Q; (L+1, B, ..) each."""
        alpha = self.log_alpha.detach().exp()
        fresh, log_density = gaussian.sample(head, self.generator)
        with torch.no_grad():  # no `terminated` here: an episode only ever is truncated, so the tail counts
            tail = torch.minimum(*self.target(obs[1:], fresh[1:])) - alpha * log_density[1:]
            goal = reward + self.config.gamma * tail
        first, second = self.critic(obs[:-1], action)
        loss = F.mse_loss(first, goal) + F.mse_loss(second, goal)

        def actor_loss() -> torch.Tensor:
            return (alpha * log_density - torch.minimum(*self.critic(obs, fresh))).mean()

        return loss, actor_loss, -log_density.detach().mean(), first.detach().mean()

    def _discrete(
        self, obs: torch.Tensor, action: torch.Tensor, reward: torch.Tensor, head: torch.Tensor
    ) -> tuple[torch.Tensor, Callable[[], torch.Tensor], torch.Tensor, torch.Tensor]:
        """The same with Q = mean over the M N heads of q_h(obs, choice_h), so that expectations over the
        independent heads are exact sums (the critics give (.., M N, 3)).
        """
        alpha = self.log_alpha.detach().exp()
        log_chance = head.log_softmax(-1)
        chance = log_chance.exp()
        entropy = -(chance * log_chance).sum((-1, -2))

        def expected(values: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
            return (weights * values).sum(-1).mean(-1)

        with torch.no_grad():
            one, two = (expected(values, chance[1:]) for values in self.target(obs[1:], None))
            goal = reward + self.config.gamma * (torch.minimum(one, two) + alpha * entropy[1:])
        index = action.long().unsqueeze(-1)
        first, second = (q.gather(-1, index).squeeze(-1).mean(-1) for q in self.critic(obs[:-1], None))
        loss = F.mse_loss(first, goal) + F.mse_loss(second, goal)

        def actor_loss() -> torch.Tensor:
            with torch.no_grad():
                values = torch.minimum(*self.critic(obs, None))
            return -(expected(values, chance) + alpha * entropy).mean()

        return loss, actor_loss, entropy.detach().mean(), first.detach().mean()

    @property
    def entropy_goal(self) -> float:
        """Entropy of all heads together that the temperature is tuned to."""
        config = self.config
        each = config.target_entropy_discrete * math.log(3) if config.discrete else config.target_entropy
        return each * self.num_agents * self.num_servers

    def _descend(self, name: str, loss: torch.Tensor) -> None:
        optimiser = self.optimisers[name]
        parameters = [p for group in optimiser.param_groups for p in group["params"]]
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.grad = gradient
        nn.utils.clip_grad_norm_(parameters, self.config.grad_clip * (10 if name == "critic" else 1))
        optimiser.step()

    def state(self) -> dict[str, Any]:
        """All that the rest of the training depends on."""
        optimisers = {name: checkpoint.optimiser_state(each) for name, each in self.optimisers.items()}
        return {name: getattr(self, name).state_dict() for name in _NETS} | {
            "optimisers": optimisers,
            "log_alpha": self.log_alpha,
            "steps_done": self.steps_done,
            "normaliser": self.normaliser.state(),
            "scale": dict(vars(self.scale)),
            "replay": self.replay.state(),
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
        self.steps_done = state["steps_done"]
        self.normaliser.load({name: array.numpy() for name, array in state["normaliser"].items()})
        vars(self.scale).update(state["scale"])
        self.replay.load(state["replay"])
        self.generator.set_state(state["generator"])
        self._take_statistics()


class CentrLbTrainer:
    """The agent on one scenario; a round is `num_envs` episodes played side by side, then learning."""

    def __init__(self, config: CentrLb, scenario: Scenario, seed: int, threads: int = 1) -> None:
        self.config, self.scenario, self.seed = config, scenario, seed
        del threads  # one agent, small matrices
        torch.set_num_threads(1)
        self.steps = round(scenario.episode.horizon_s / scenario.control.step_s)
        config.check(self.steps)
        check_game(config, scenario)
        (own,) = np.random.SeedSequence(seed).generate_state(1, np.uint64)
        size = (scenario.num_agents, scenario.num_servers)
        self.agent = Agent(config, *size, self.steps, int(own >> 1))
        self.episodes = 0

    def play(self, seeds: Sequence[int]) -> Round:
        """One episode per seed with sampled actions, remembered by the agent; the records."""
        states = [self.agent.actor.initial_state(len(seeds))]

        def act(obs: torch.Tensor) -> torch.Tensor:
            action, state = self.agent.act(obs.flatten(1), states[-1])
            states.append(state)
            return action.unflatten(-1, (self.agent.num_agents, self.agent.num_servers))

        played, tape = play(self.scenario, seeds, act, self.config)
        reward = tape["reward"].mean(-1)
        self.agent.remember(
            tape["obs"].flatten(2), tape["action"].flatten(2), reward, torch.stack(states[:-1], 1)
        )
        size = (self.agent.num_agents, self.agent.num_servers)
        played.bytes_exchanged = reward.numel() * central_bytes_per_step(*size)
        return played

    def round(self, episodes: int) -> Round:
        """Play `episodes` at once, learn from them; the records."""
        played = self.play([native.train_seed(self.seed, self.episodes + index) for index in range(episodes)])
        self.episodes += episodes
        self.agent.slow_down(self.episodes)
        steps = max(1, round(self.config.updates_per_episode * episodes))
        played.learning.update(learn([self.agent], steps, 1))
        return played

    def policy(self) -> bytes:
        """The central policy file of the averaged actor, which acts by its mean or likeliest choice."""
        return export.central_policy_bytes(self.agent.averaged, self.agent.normaliser, self.config.clip)

    def state(self) -> dict[str, Any]:
        """For a checkpoint between rounds."""
        return {"episodes": self.episodes, "agent": self.agent.state()}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from `state()`."""
        self.episodes = state["episodes"]
        self.agent.load(state["agent"])
