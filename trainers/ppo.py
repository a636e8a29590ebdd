"""IPPO and MAPPO: proximal policy optimisation, each balancer by itself or around one central critic.

Schulman et al., "Proximal Policy Optimization Algorithms", 2017; de Witt et al., "Is Independent Learning All
You Need in the StarCraft Multi-Agent Challenge?", 2020 (IPPO); Yu et al., "The Surprising Effectiveness of
PPO in Cooperative Multi-Agent Games", 2022 (MAPPO). Loss and advantages are TorchRL's (ClipPPOLoss,
generalised advantage estimation). This file tells how both learn, ppo_parts.py how
an agent acts; `session.py` runs, logs and saves.

- IPPO: every agent has its own actor, critic, optimiser and normaliser; nothing is shared and nothing sent.
- MAPPO: one critic with a value per agent sees all observations and, with `state = "true"`, the servers' true
  remaining times, which a simulator knows. Actors are each agent's own, or one for all (`share`).

Reward, discount, constants per server that learn faster than the network, falling rates and the averaged
actor that is exported are those of distr_lb.py, for the reasons given there. What is particular here:

- The game goes on: an episode is truncated, never terminated, so V of the last observation counts.
- The critic is also told the last reward: it says how uneven the pool was before the action, which is most of
  the variance of the next one. (That is what the shaping of distr_lb.py does for a critic Q.)
- A continuous move is the Gaussian's value before the squash: the squash cancels in the ratio of densities,
  and the entropy has a closed form.
- Statistics for normalisation are taken before a round is learnt from; densities of the moves, values and
  recurrent states are computed once at that point, by one pass over the whole episodes.
- Many worlds: a gradient of sampled advantages needs about 4,000 joint steps to show what a constant per
  server is worth, and the simulator is fast. 32 episodes per round.

What would be sent, were the balancers machines. IPPO: nothing. MAPPO in a round of E episodes of T steps,
with M agents, N servers, observations of D float32 and actions of A bytes each (4, a float32; 1 for a
discrete choice),

    E M (4 D (T + 1) + A N T + 4 T)    trajectories: observations, actions, rewards
    + E 4 N (T + 1)                    the remaining times, if state = "true"
    + M 4 (P + 32)                     back: P parameters of the actor, 16 means and 16 deviations

bytes, headers not counted. Densities and recurrent states are not sent: the learner knows the actors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
from torch import nn
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value.functional import generalized_advantage_estimate

from steelyard import native
from steelyard.agents import export
from steelyard.agents.gru_actor import INPUTS
from steelyard.agents.layout import FEATURES_PER_SERVER, INTER_ARRIVAL_FEATURES, observation_dim
from steelyard.agents.state_value import StateValue
from steelyard.envs.scenario import Scenario
from steelyard.trainers import checkpoint
from steelyard.trainers.ppo_parts import Agent, Team, cut, moves, run
from steelyard.trainers.rounds import (
    RewardScale,
    Round,
    check_game,
    check_losses,
    follow,
    learn,
    play,
    remaining_time,
    require,
)


@dataclass(frozen=True)
class Ippo:
    """Hyper-parameters; `--set algo.NAME=VALUE` changes one. Defaults are what was found to learn best."""

    input: str = "shared"
    """`shared`: one network for all servers and a constant for each; `per_server`: without the constants, so
    that the servers' order does not matter; `flat`: one network on everything."""
    recurrent: bool = True
    """A GRU in the actor; false: feed-forward, with input `flat` or `per_server`."""
    discrete: bool = False
    """Weights {1, 1.5, 2} by one categorical head per server instead of continuous ones."""
    reward: str = "log_vbf"
    """Kind of reward; empty: the scenario's."""
    measure: str = "true"
    """Which loads the reward is over: true, durations or own; empty: the scenario's."""
    num_envs: int = 32
    """Episodes played side by side; learning happens between such rounds."""
    epochs: int = 4
    """Times that every step of a round is learnt from."""
    minibatches: int = 4
    """Gradient steps per epoch."""
    chunk: int = 12
    """Steps of an episode that are learnt from in one piece, from the recurrent state at their start."""
    hidden: int = 16
    """Units of the actor's layers, per server unless `flat`."""
    critic_hidden: int = 64
    """Units of the critic's layers."""
    actor_lr: float = 3e-4
    """First learning rate of the actor (Adam), but for:"""
    bias_lr: float = 3e-2
    """First learning rate of its constants: the bias of the head and, if `shared`, those of the servers."""
    critic_lr: float = 1e-3
    """Learning rate of the critic (Adam)."""
    clip_ratio: float = 0.2
    """epsilon of the clipped objective."""
    entropy: float = 0.0
    """Weight of the policy's entropy in the objective."""
    gamma: float = 0.5
    """Discount per step."""
    trace: float = 0.8
    """lambda of generalised advantage estimation."""
    decay_episodes: float = 1000.0
    """Episodes after which the actor's rates have halved: they fall as 1 / (1 + episodes / this)."""
    average: float = 0.999
    """Longest memory of the averaged actor, which is exported; before, it spans the last quarter of the
    run."""
    clip: float = 5.0
    """Normalised observations are limited to +-clip."""
    grad_clip: float = 1.0
    """Largest norm of a gradient, of the actor's network, its constants and the critic each."""

    def check(self, steps: int) -> None:
        """UserError for values that make no sense with episodes of `steps` steps."""
        for name in ("num_envs", "epochs", "minibatches", "hidden", "critic_hidden"):
            require(name, getattr(self, name), getattr(self, name) >= 1, "at least 1")
        rates = ("actor_lr", "bias_lr", "critic_lr")
        for name in (*rates, "clip_ratio", "clip", "grad_clip", "decay_episodes"):
            require(name, getattr(self, name), 0 < getattr(self, name) < math.inf, "a number above 0")
        for name in ("gamma", "average"):
            require(name, getattr(self, name), 0 <= getattr(self, name) < 1, "at least 0 and below 1")
        require("trace", self.trace, 0 <= self.trace <= 1, "from 0 to 1")
        require("entropy", self.entropy, 0 <= self.entropy < math.inf, "a number from 0")
        inputs = INPUTS if self.recurrent else ("flat", "per_server")
        why = "" if self.recurrent else " when algo.recurrent = false"
        require("input", self.input, self.input in inputs, " or ".join(inputs) + why)
        require("chunk", self.chunk, 1 <= self.chunk <= steps, f"1 to {steps}, the steps of an episode")


@dataclass(frozen=True)
class Mappo(Ippo):
    """Hyper-parameters; `--set algo.NAME=VALUE` changes one. Those of IPPO, and:"""

    state: str = "true"
    """What the critic sees besides all observations: `true` remaining times, or nothing more (`obs`)."""
    share: bool = False
    """One actor and one normaliser for all agents."""

    def check(self, steps: int) -> None:
        """UserError for values that make no sense with episodes of `steps` steps."""
        super().check(steps)
        require("state", self.state, self.state in ("true", "obs"), "true or obs")


_LOGGED = {
    "policy_loss": "loss_objective",
    "critic_loss": "loss_critic",
    "entropy": "entropy",
    "kl": "kl_approx",
    "clipped": "clip_fraction",
}


class Learner:
    """What learns together: one agent (IPPO), or all of them around one critic (MAPPO)."""

    def __init__(self, config: Ippo, agents: Sequence[Agent], inputs: int, seed: int) -> None:
        self.config, self.agents = config, list(agents)
        self.actors = list(dict.fromkeys(agents))  # each once, should they be shared
        self.generator = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.critic = StateValue(inputs, agents=len(agents), hidden=config.critic_hidden)
        self.reward_scale, self.world_scale, self.steps_done = RewardScale(), RewardScale(), 0
        slow = [p for agent in self.actors for p in agent.slow()]
        fast = [p for agent in self.actors for p in agent.fast()]
        groups = (
            (slow, config.actor_lr),
            (fast, config.bias_lr),
            (self.critic.parameters(), config.critic_lr),
        )
        self.optimiser = torch.optim.Adam([{"params": list(p), "lr": rate} for p, rate in groups], fused=True)
        self.loss = self._loss()
        self.chunks, self.order = TensorDict(), list[torch.Tensor]()

    def _loss(self) -> ClipPPOLoss:
        names = ["logits"] if self.config.discrete else ["loc", "scale"]
        policy = ProbabilisticTensorDictSequential(
            TensorDictModule(Team(self.agents, self.config.discrete), ["obs", "memory"], names),
            ProbabilisticTensorDictModule(
                names, ["move"], distribution_class=moves, return_log_prob=True, log_prob_key="log_prob"
            ),
        )
        return ClipPPOLoss(
            policy,
            TensorDictModule(self.critic, ["state"], ["state_value"]),
            clip_epsilon=self.config.clip_ratio,
            entropy_coeff=self.config.entropy,
            loss_critic_type="l2",
            functional=False,
        )

    @torch.no_grad()
    def take(
        self, obs: torch.Tensor, move: torch.Tensor, reward: torch.Tensor, world: torch.Tensor | None
    ) -> None:
        """A round to learn from: obs (B, T+1, M, obs_dim) raw, move (B, T, M, N), reward (B, T, M), and the
        remaining times (B, T+1, N) or None.
        """
        for index, agent in enumerate(self.agents):
            agent.normaliser.update(obs[:, :, index].numpy())
        self.reward_scale.update(reward)
        steps, scaled = reward.shape[1], self.reward_scale(reward)
        seen = torch.stack([a.normalised(obs[:, :, i]) for i, a in enumerate(self.agents)], 2)
        state = self._state(seen, scaled, world)
        advantage, target = self._advantage(self.critic(state), scaled.unsqueeze(-1))
        memory = [run(a.actor, seen[:, :steps, i], a.memory(len(obs)))[1] for i, a in enumerate(self.agents)]
        whole = {
            "obs": seen[:, :steps],
            "memory": torch.stack(memory, 2)[:, :steps],
            "state": state[:, :steps],
            "move": move,
            "advantage": advantage,
            "value_target": target,
        }
        self.chunks = cut(whole, self.config.chunk)
        policy = self.loss.actor_network
        self.chunks["log_prob"] = policy.get_dist(self.chunks).log_prob(self.chunks["move"])
        self.order = []

    def _state(self, seen: torch.Tensor, reward: torch.Tensor, world: torch.Tensor | None) -> torch.Tensor:
        """(B, T+1, inputs) of the critic: observations, the last rewards, remaining times if there are."""
        last = torch.cat([torch.zeros_like(reward[:, :1]), reward], 1)
        parts = [seen.flatten(2), last]
        if world is not None:
            times = world.log1p()
            self.world_scale.update(times)
            parts.append(self.world_scale(times))
        return torch.cat(parts, -1)

    def _advantage(self, value: torch.Tensor, reward: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Advantages of mean 0 and variance 1 for each agent, and the goals of the critic; (B, T, M, 1)."""
        terminated = torch.zeros_like(reward, dtype=torch.bool)
        over = terminated.clone()
        over[:, -1] = True
        rest = (value[:, :-1], value[:, 1:], reward, over, terminated)
        advantage, target = generalized_advantage_estimate(
            self.config.gamma, self.config.trace, *rest, time_dim=1
        )
        spread = advantage.std((0, 1), correction=0).clamp_min(1e-6)
        return (advantage - advantage.mean((0, 1))) / spread, target

    def update(self) -> dict[str, float]:
        """One gradient step on the next share of the chunks; what to log."""
        if not self.order:
            shuffled = torch.randperm(len(self.chunks), generator=self.generator)
            self.order = list(shuffled.chunk(self.config.minibatches))
        found = self.loss(self.chunks[self.order.pop()])
        self.optimiser.zero_grad()
        (found["loss_objective"] + found["loss_entropy"] + found["loss_critic"]).backward()
        for group in self.optimiser.param_groups:
            nn.utils.clip_grad_norm_(group["params"], self.config.grad_clip)
        self.optimiser.step()
        self.steps_done += 1
        share = max(
            1 - self.config.average, 4 / (self.steps_done + 4)
        )  # Shamir, Zhang 2013, eq. (4), eta = 3
        for agent in self.actors:
            follow(agent.averaged, agent.actor, share)
        return check_losses({name: found[key].item() for name, key in _LOGGED.items()})

    def slow_down(self, episodes: int) -> None:
        """Set the actors' rates for the time after that many episodes."""
        share = 1 / (1 + episodes / self.config.decay_episodes)
        slow, fast, _ = self.optimiser.param_groups
        slow["lr"], fast["lr"] = self.config.actor_lr * share, self.config.bias_lr * share

    def state(self) -> dict[str, Any]:
        """All that the rest of the training depends on, apart from the agents."""
        return {
            "critic": self.critic.state_dict(),
            "optimiser": checkpoint.optimiser_state(self.optimiser),
            "reward_scale": dict(vars(self.reward_scale)),
            "world_scale": dict(vars(self.world_scale)),
            "steps_done": self.steps_done,
            "generator": self.generator.get_state(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on from `state()`."""
        self.critic.load_state_dict(state["critic"])
        checkpoint.load_optimiser(self.optimiser, state["optimiser"])
        vars(self.reward_scale).update(state["reward_scale"])
        vars(self.world_scale).update(state["world_scale"])
        self.steps_done = state["steps_done"]
        self.generator.set_state(state["generator"])


class PpoTrainer:
    """All agents on one scenario; a round is `num_envs` episodes played side by side, then learning."""

    def __init__(self, config: Ippo, scenario: Scenario, seed: int, threads: int = 1) -> None:
        self.config, self.scenario, self.seed, self.threads = config, scenario, seed, threads
        torch.set_num_threads(1)  # the matrices are small; learners, not operations, run side by side
        self.steps = round(scenario.episode.horizon_s / scenario.control.step_s)
        config.check(self.steps)
        check_game(config, scenario)
        agents, servers = scenario.num_agents, scenario.num_servers
        state = np.random.SeedSequence(seed).generate_state(2 * agents, np.uint64)
        seeds = [int(word >> 1) for word in state]
        seen = observation_dim(servers) + 1  # by an agent's critic: its observation and its last reward
        if isinstance(config, Mappo):
            mine = [Agent(config, servers, each) for each in seeds[: 1 if config.share else agents]]
            self.agents = mine * agents if config.share else mine
            inputs = agents * seen + (servers if config.state == "true" else 0)
            self.learners = [Learner(config, self.agents, inputs, seeds[agents])]
        else:
            self.agents = [Agent(config, servers, each) for each in seeds[:agents]]
            pairs = zip(self.agents, seeds[agents:], strict=True)
            self.learners = [Learner(config, [agent], seen, each) for agent, each in pairs]
        self.episodes = 0

    def play(self, seeds: Sequence[int]) -> tuple[Round, dict[str, torch.Tensor]]:
        """One episode per seed with sampled actions; the records, and the tape of rounds.play with "move",
        (B, T, M, N), the actions before the squash.
        """
        memory = [agent.memory(len(seeds)) for agent in self.agents]
        done: list[torch.Tensor] = []

        def act(obs: torch.Tensor) -> torch.Tensor:
            found = []
            for index, agent in enumerate(self.agents):
                move, memory[index] = agent.act(obs[:, index], memory[index])
                found.append(move)
            done.append(torch.stack(found, 1))
            return done[-1] if self.config.discrete else torch.tanh(done[-1])

        watch = remaining_time if isinstance(self.config, Mappo) and self.config.state == "true" else None
        played, tape = play(self.scenario, seeds, act, self.config, watch)
        played.bytes_exchanged = self.bytes_of_round(len(seeds))
        return played, tape | {"move": torch.stack(done, 1)}

    def round(self, episodes: int) -> Round:
        """Play `episodes` at once, learn from them; the records."""
        seeds = [native.train_seed(self.seed, self.episodes + index) for index in range(episodes)]
        played, tape = self.play(seeds)
        self.episodes += episodes
        first = 0
        for learner in self.learners:
            part = slice(first, first + len(learner.agents))
            first = part.stop
            obs, move, reward = (tape[name][:, :, part] for name in ("obs", "move", "reward"))
            learner.take(obs, move, reward, tape.get("world"))
            learner.slow_down(self.episodes)
        steps = self.config.epochs * self.config.minibatches
        played.learning.update(learn(self.learners, steps, self.threads))
        return played

    def bytes_of_round(self, episodes: int) -> int:
        """What agents would send in a round, by the formula at the head of this file."""
        config, servers = self.config, self.scenario.num_servers
        if not isinstance(config, Mappo):
            return 0
        step = (1 if config.discrete else 4) * servers + 4
        one = 4 * observation_dim(servers) * (self.steps + 1) + step * self.steps
        known = 4 * servers * (self.steps + 1) if config.state == "true" else 0
        parameters = sum(p.numel() for p in self.agents[0].actor.parameters())
        back = 4 * (parameters + 2 * (FEATURES_PER_SERVER + INTER_ARRIVAL_FEATURES))
        return episodes * (len(self.agents) * one + known) + len(self.agents) * back

    def policy(self) -> bytes:
        """The policy file of the averaged actors, which act by their mean or likeliest choice."""
        each = list(dict.fromkeys(self.agents))  # one that is shared serves any number of balancers
        actors, normalisers = ([getattr(a, n) for a in each] for n in ("averaged", "normaliser"))
        return export.policy_bytes(actors, normalisers, self.config.clip)

    def state(self) -> dict[str, Any]:
        """For a checkpoint between rounds."""
        return {
            "episodes": self.episodes,
            "agents": [agent.state() for agent in dict.fromkeys(self.agents)],
            "learners": [learner.state() for learner in self.learners],
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on from `state()`."""
        self.episodes = state["episodes"]
        for agent, mine in zip(dict.fromkeys(self.agents), state["agents"], strict=True):
            agent.load(mine)
        for learner, theirs in zip(self.learners, state["learners"], strict=True):
            learner.load(theirs)
