"""Distr-LB: one independent soft actor-critic with a recurrent actor per load balancer.

Every agent has its own actor, twin critics, temperature, replay, optimisers and normaliser; nothing is shared
and nothing is sent (Yao, Ding, Clausen, "Multi-Agent Reinforcement Learning for Network Load Balancing in
Data Center", 2022; Haarnoja et al., "Soft Actor-Critic Algorithms and Applications", 2018; Christodoulou,
"Soft Actor-Critic for Discrete Action Settings", 2019). This file tells the whole algorithm; `session.py`
runs, logs and saves it.

Choices that decide whether it learns, with the reasons as measured on cluster-a-cpu:

- Reward: -log of the variance over servers of the *true remaining time*, the quantity that the paper's game
  is
  defined on; a simulator knows it. It is used in training alone: the policy sees only what a balancer
  measures. Measured flow durations answer an action after seconds and at first in the wrong direction: a
  server that is sent more flows shows more young ones.
- gamma .5: what one action, worth half a second, does to the backlogs shows at once; larger values have the
  same optimum and more noise.
- Shaping: r'_t = r_t + k (gamma r_t - r_{t-1}), potential-based (Ng, Harada, Russell 1999), so it changes no
  policy's rank. It takes out of the return the imbalance that was there before the action.
- Critics see a - mean(a): scaling all weights changes no decision, and noise along that direction would drive
  all weights into the end of their range. They are feed-forward on the observation, whose reservoirs hold the
  last seconds, and are told which server a row is from, so that noise in a row is not taken for evidence.
- The actor is one small network for all servers and a learnt constant per server (`shared`). The constants
  learn ten times faster than the network: a constant weight per server is most of what there is to gain in a
  steady pool, and weights that follow noise cost more than they bring, 6 % of the mean sojourn time for a
  standard deviation of .2 in the action.
- The actor's rates fall as 1 / (1 + episodes / 100) (Robbins, Monro 1951): the critics' slope in the action
  lags behind the policy, and at constant rates the weights swing around their best values. What is evaluated
  and exported is an average of the actor's parameters over the last part of the run (Polyak, Juditsky 1992).
- Temperature: it starts low, .001 for rewards of unit variance. At .02 the policy is uniform for 60 episodes.
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
from steelyard.agents.critics import TwinCritic
from steelyard.agents.gru_actor import INPUTS, GruActor
from steelyard.agents.normaliser import Normaliser
from steelyard.envs.scenario import Scenario
from steelyard.trainers import checkpoint
from steelyard.trainers.replay import SequenceReplay
from steelyard.trainers.rounds import (
    MakeBatch,
    RewardScale,
    Round,
    check_game,
    check_losses,
    follow,
    learn,
    play,
    require,
    shaped,
    simulated,
)


@dataclass(frozen=True)
class DistrLb:
    """Hyper-parameters; `--set algo.NAME=VALUE` changes one. Defaults are what was found to learn best."""

    input: str = "shared"
    """`shared`: one network for all servers and a constant for each; `per_server`: without the constants, so
    that the servers' order does not matter; `flat`: one network on everything."""
    discrete: bool = False
    """Weights {1, 1.5, 2} by one categorical head per server instead of continuous ones."""
    reward: str = "log_vbf"
    """Kind of reward; empty: the scenario's."""
    measure: str = "true"
    """Which loads the reward is over: true, durations or own; empty: the scenario's."""
    num_envs: int = 8
    """Episodes played side by side; learning happens between such rounds."""
    updates_per_episode: float = 10.0
    """Gradient steps per agent for every episode played."""
    batch_size: int = 24
    """Chunks per gradient step."""
    chunk: int = 12
    """Steps per chunk, burn-in included."""
    burn_in: int = 4
    """First steps of a chunk that only renew the recurrent state."""
    critic: str = "set"
    """`set`: one network shared by all servers, told which is which; `flat`: one on everything."""
    replay_episodes: int = 3000
    """Episodes kept per agent."""
    hidden: int = 16
    """Units of the actor's layers, per server unless `flat`."""
    critic_hidden: int = 32
    """Units of the critics' layers."""
    actor_lr: float = 2e-5
    """Learning rate of the actor (Adam), but for:"""
    bias_lr: float = 2e-4
    """Learning rate of its constants: the bias of the head and, if `shared`, those of the servers."""
    critic_lr: float = 1e-3
    """Learning rate of the critics (Adam)."""
    alpha_lr: float = 1e-3
    """Learning rate of log alpha (Adam)."""
    alpha: float = 0.001
    """First temperature, for rewards of unit variance."""
    target_entropy: float = -1.0
    """Entropy per server that the temperature is tuned to: -|A| in all, as in Table 9."""
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
        require("input", self.input, self.input in INPUTS, " or ".join(INPUTS))
        require("critic", self.critic, self.critic in ("flat", "set"), "flat or set")
        require("chunk", self.chunk, 2 <= self.chunk <= steps, f"2 to {steps}, the steps of an episode")
        require("burn_in", self.burn_in, 0 <= self.burn_in < self.chunk, f"0 to {self.chunk - 1}")


_RATES = ("actor_lr", "bias_lr", "critic_lr", "alpha_lr")
_NETS = ("actor", "critic", "target", "averaged")


class Agent:
    """One load balancer's learner; nothing in it knows of the others."""

    def __init__(self, config: DistrLb, num_servers: int, steps: int, seed: int) -> None:
        self.config, self.num_servers = config, num_servers
        self.generator = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.actor = GruActor(
                num_servers, input_mode=config.input, hidden=config.hidden, discrete=config.discrete
            )
            self.critic = TwinCritic(
                num_servers, kind=config.critic, hidden=config.critic_hidden, discrete=config.discrete
            )
        self.target, self.averaged = copy.deepcopy(self.critic), copy.deepcopy(self.actor)
        self.log_alpha = torch.tensor(math.log(config.alpha), requires_grad=True)
        self.optimisers = {
            "actor": torch.optim.Adam(self._actor_rates(), lr=config.actor_lr, fused=True),
            "critic": torch.optim.Adam(self.critic.parameters(), lr=config.critic_lr, fused=True),
            "alpha": torch.optim.Adam([self.log_alpha], lr=config.alpha_lr, fused=True),
        }
        self.normaliser, self.scale, self.steps_done = Normaliser(num_servers), RewardScale(), 0
        stride = max(config.burn_in, 1)
        self.replay = SequenceReplay(
            config.replay_episodes, steps, config.chunk, stride, config.batch_size, self.generator
        )
        self._take_statistics()

    def _actor_rates(self) -> list[dict[str, Any]]:
        slow, fast = self.actor.slow_and_fast()
        return [{"params": slow}, {"params": fast, "lr": self.config.bias_lr}]

    def _take_statistics(self) -> None:
        mean, inverse = self.normaliser.vectors()
        self._mean, self._inverse = torch.from_numpy(mean), torch.from_numpy(inverse)

    def normalised(self, obs: torch.Tensor) -> torch.Tensor:
        """(obs - mean) / std, limited, exactly as the exported policy does it."""
        return ((obs - self._mean) * self._inverse).clamp(-self.config.clip, self.config.clip)

    @torch.no_grad()
    def act(self, obs: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Sampled actions (B, N), in [-1, 1] or choice indices, and the next state, from obs (B, obs_dim)."""
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
        self.normaliser.update(obs.numpy())
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
        return shaped(self.scale(reward), self.config.gamma, self.config.shaping)

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
        """The same with Q = mean over servers of q_j(obs, choice_j), so that expectations over the
        independent heads are exact sums (the critics give (.., N, 3)).
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
        return each * self.num_servers

    def _descend(self, name: str, loss: torch.Tensor) -> None:
        optimiser = self.optimisers[name]
        parameters = [p for group in optimiser.param_groups for p in group["params"]]
        gradients = torch.autograd.grad(loss, parameters)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        nn.utils.clip_grad_norm_(parameters, self.config.grad_clip * (10 if name == "critic" else 1))
        optimiser.step()

    def state(self) -> dict[str, Any]:
        """All that the rest of the training depends on."""
        nets = {name: getattr(self, name).state_dict() for name in _NETS}
        optimisers = {name: checkpoint.optimiser_state(each) for name, each in self.optimisers.items()}
        return {
            **nets,
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


class DistrLbTrainer:
    """All agents on one scenario; a round is `num_envs` episodes played side by side, then learning."""

    def __init__(self, config: DistrLb, scenario: Scenario, seed: int, threads: int = 1) -> None:
        self.config, self.scenario, self.seed, self.threads = config, scenario, seed, threads
        torch.set_num_threads(1)  # the matrices are small; agents, not operations, run side by side
        self.steps = round(scenario.episode.horizon_s / scenario.control.step_s)
        config.check(self.steps)
        check_game(config, scenario)
        seeds = np.random.SeedSequence(seed).generate_state(scenario.num_agents, np.uint64)
        self.agents = [Agent(config, scenario.num_servers, self.steps, int(s >> 1)) for s in seeds]
        self.episodes = 0
        self.make_batch: MakeBatch = simulated

    def play(self, seeds: Sequence[int]) -> Round:
        """One episode per seed with sampled actions, remembered by every agent; the records."""
        states = [agent.actor.initial_state(len(seeds)) for agent in self.agents]
        before: list[list[torch.Tensor]] = [[] for _ in self.agents]

        def act(obs: torch.Tensor) -> torch.Tensor:
            actions = []
            for index, agent in enumerate(self.agents):
                before[index].append(states[index])
                action, states[index] = agent.act(obs[:, index], states[index])
                actions.append(action)
            return torch.stack(actions, 1)

        played, tape = play(self.scenario, seeds, act, self.config, make=self.make_batch)
        for index, agent in enumerate(self.agents):
            obs, action, reward = (
                tape[name][:, :, index].contiguous() for name in ("obs", "action", "reward")
            )
            agent.remember(obs, action, reward, torch.stack(before[index], 1))
        return played

    def round(self, episodes: int) -> Round:
        """Play `episodes` at once, learn from them; the records."""
        seeds = [native.train_seed(self.seed, self.episodes + index) for index in range(episodes)]
        played = self.play(seeds)
        self.episodes += episodes
        for agent in self.agents:
            agent.slow_down(self.episodes)
        steps = max(1, round(self.config.updates_per_episode * episodes))
        played.learning.update(learn(self.agents, steps, self.threads))
        return played

    def policy(self) -> bytes:
        """The policy file of the averaged actors, which act by their mean or likeliest choice."""
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
