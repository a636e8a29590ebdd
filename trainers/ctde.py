"""Centralised training, decentralised execution: what QMIX, VDN, MASAC and MADDPG share.

A central learner has all trajectories and trains one actor, which every balancer runs on what it sees itself:
an exported policy sends nothing. The losses are TorchRL's; an algorithm's own file says which one, and how
its networks are put together. Reward, discount, shaping, rates and averaging are those of distr_lb.py, for
the reasons given there.

- Reward: one for the team, the mean of the agents' rewards (for `team_*`, and for any reward over the `true`
  measure but `marginal_vbf`, they all get the same number).
- Global state: `true`, the remaining time of each server [s], which a simulator knows, or `obs`, all
  observations side by side, which is all that a central learner on a testbed would have.
- Recurrent actors: a chunk starts from the state stored at its collection, renewed over `burn_in` steps.
  TorchRL's losses evaluate the chunk at t and at t + 1 as two batches; each carries the state that belongs to
  its own first step, so that both are what acting step by step gives.

What would be sent, were the balancers machines: in a round of E episodes of T steps, with M agents, N
servers, observations of D float32 and actions of A bytes each (4, a float32; 1 for a discrete choice),

    E M (4 D (T + 1) + A N T + 4 T)    trajectories: observations, actions, rewards
    + E 4 N (T + 1)                    the remaining times, if state = "true"
    + M 4 (P + 32)                     back: P parameters of the actor, 16 means and 16 deviations

bytes, headers not counted. Recurrent states are not sent: the learner knows the actor.
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
from torchrl.objectives import SoftUpdate

from steelyard import native
from steelyard.agents import export
from steelyard.agents.gru_actor import INPUTS, GruActor
from steelyard.agents.layout import FEATURES_PER_SERVER, INTER_ARRIVAL_FEATURES, observation_dim
from steelyard.agents.mlp_actor import MlpActor
from steelyard.agents.normaliser import Normaliser
from steelyard.envs.batch import LoadBalanceBatch
from steelyard.envs.scenario import Scenario
from steelyard.trainers import checkpoint
from steelyard.trainers.replay import SequenceReplay
from steelyard.trainers.rounds import (
    RewardScale,
    Round,
    check_game,
    check_losses,
    follow,
    mean_of,
    play,
    require,
    shaped,
)

Actor = GruActor | MlpActor
STATES = ("true", "obs")


@dataclass(frozen=True)
class Ctde:
    """Hyper-parameters of every central learner; `--set algo.NAME=VALUE` changes one."""

    input: str = "shared"
    """`shared`: one network for all servers and a constant for each; `per_server`: without the constants;
    `flat`: one network on everything."""
    recurrent: bool = True
    """A GRU in the actor; false: feed-forward, with input `flat` or `per_server`."""
    discrete: bool = False
    """Weights {1, 1.5, 2} instead of continuous ones; fixed by the algorithm."""
    reward: str = "team_log_vbf"
    """Kind of reward, of which the mean over agents counts; empty: the scenario's."""
    measure: str = "true"
    """Which loads the reward is over: true, durations or own; empty: the scenario's."""
    state: str = "true"
    """What the central learner knows besides: `true` remaining times, or `obs`, no more than all agents."""
    num_envs: int = 8
    """Episodes played side by side; learning happens between such rounds."""
    updates_per_episode: float = 10.0
    """Gradient steps for every episode played."""
    batch_size: int = 24
    """Chunks per gradient step, of all agents together."""
    chunk: int = 12
    """Steps per chunk, burn-in included."""
    burn_in: int = 4
    """First steps of a chunk that only renew the recurrent state."""
    replay_episodes: int = 3000
    """Episodes kept."""
    hidden: int = 16
    """Units of the actor's layers, per server unless `flat`."""
    actor_lr: float = 2e-5
    """Learning rate of the actor (Adam), but for:"""
    bias_lr: float = 2e-4
    """Learning rate of its constants: the bias of the head and, if `shared`, those of the servers."""
    critic_lr: float = 1e-3
    """Learning rate of what stays with the learner: critics, mixer (Adam)."""
    gamma: float = 0.5
    """Discount per step."""
    shaping: float = 1.2
    """k of the shaping by the last reward; 0 turns it off."""
    tau: float = 0.05
    """Share of the networks that moves into their targets at a gradient step."""
    decay_episodes: float = 100.0
    """Episodes after which the actor's rates have halved: they fall as 1 / (1 + episodes / this)."""
    average: float = 0.999
    """Longest memory of the averaged actor, which is exported; before, it spans the last quarter of the
    run."""
    clip: float = 5.0
    """Normalised observations are limited to +-clip."""
    grad_clip: float = 1.0
    """Largest norm of the actor's gradient; ten times that for the rest."""

    def check(self, steps: int) -> None:
        """UserError for values that make no sense with episodes of `steps` steps."""
        for name in ("num_envs", "batch_size", "hidden", "replay_episodes"):
            require(name, getattr(self, name), getattr(self, name) >= 1, "at least 1")
        rates = ("actor_lr", "bias_lr", "critic_lr")
        for name in (*rates, "clip", "grad_clip", "decay_episodes", "updates_per_episode"):
            require(name, getattr(self, name), 0 < getattr(self, name) < math.inf, "a number above 0")
        for name in ("gamma", "average"):
            require(name, getattr(self, name), 0 <= getattr(self, name) < 1, "at least 0 and below 1")
        require("tau", self.tau, 0 < self.tau < 1, "above 0 and below 1")
        require("shaping", self.shaping, 0 <= self.shaping < math.inf, "a number from 0")
        inputs = INPUTS if self.recurrent else ("flat", "per_server")
        why = "" if self.recurrent else " when algo.recurrent = false"
        require("input", self.input, self.input in inputs, " or ".join(inputs) + why)
        require("state", self.state, self.state in STATES, " or ".join(STATES))
        require("chunk", self.chunk, 2 <= self.chunk <= steps, f"2 to {steps}, the steps of an episode")
        require("burn_in", self.burn_in, 0 <= self.burn_in < self.chunk, f"0 to {self.chunk - 1}")


def run(actor: Actor, obs: torch.Tensor, memory: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Heads (L, B, M, N, outputs) and the memory (B, M, R, H) after the last step, from obs (L, B, M,
    obs_dim).
    """
    shape = obs.shape[1:3]
    if isinstance(actor, MlpActor):
        return actor(obs), memory
    output = actor(obs.flatten(1, 2), memory.flatten(0, 1))
    return output.head.unflatten(1, shape), output.state.unflatten(0, shape)


class CentralTrainer:
    """One learner for all agents; a round is `num_envs` episodes played side by side, then learning.

    An algorithm says what its networks and its loss are (`build`) and how agents act in training (`choose`).
    """

    loss: Any
    """A TorchRL LossModule: the losses of a batch under keys that begin with `loss`."""
    deterministic = False
    """Whether the actor's head is the action alone, without a spread."""

    def __init__(self, config: Any, scenario: Scenario, seed: int, threads: int = 1) -> None:
        del threads  # one learner, small matrices: nothing to run side by side
        self.config, self.scenario, self.seed = config, scenario, seed
        torch.set_num_threads(1)
        self.steps = round(scenario.episode.horizon_s / scenario.control.step_s)
        config.check(self.steps)
        check_game(config, scenario)
        self.num_agents, self.num_servers = scenario.num_agents, scenario.num_servers
        self.obs_dim = observation_dim(self.num_servers)
        own_seed = int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0] >> 1)
        self.generator = torch.Generator().manual_seed(own_seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(own_seed)
            self.actor = self._new_actor()
            self.build()
        self.averaged = copy.deepcopy(self.actor)
        self.loss.make_value_estimator(gamma=config.gamma)
        self.targets = SoftUpdate(self.loss, tau=config.tau)
        self.optimiser = torch.optim.Adam(self._groups(), fused=True)
        self.normaliser = Normaliser(self.num_servers)
        self.scale, self.world_scale = RewardScale(), RewardScale()
        stride = max(config.burn_in, 1)
        self.replay = SequenceReplay(
            config.replay_episodes, self.steps, config.chunk, stride, config.batch_size, self.generator
        )
        self.episodes = self.updates = 0
        self._take_statistics()

    def _new_actor(self) -> Actor:
        kind = GruActor if self.config.recurrent else MlpActor
        return kind(
            self.num_servers,
            input_mode=self.config.input,
            hidden=self.config.hidden,
            discrete=self.config.discrete,
            deterministic=self.deterministic,
        )

    def build(self) -> None:
        """Make `loss` around `actor`."""
        raise NotImplementedError

    def choose(self, head: torch.Tensor) -> torch.Tensor:
        """Actions (B, M, N) of an exploring agent, from heads (B, M, N, outputs)."""
        raise NotImplementedError

    def extras(self) -> dict[str, float]:
        """What else to log of a round."""
        return {}

    @property
    def world_dim(self) -> int:
        """Length of the global state."""
        return self.num_servers if self.config.state == "true" else self.num_agents * self.obs_dim

    def _groups(self) -> list[dict[str, Any]]:
        """Adam's groups: the actor, its constants, and, if there is any, the rest."""
        config, fast = self.config, ("head.bias", "constant")
        named = list(self.actor.named_parameters())
        mine = {id(parameter) for _, parameter in named}
        rest = [p for p in self.loss.parameters() if id(p) not in mine and p.requires_grad]
        groups = [
            {"params": [p for name, p in named if name not in fast], "lr": config.actor_lr},
            {"params": [p for name, p in named if name in fast], "lr": config.bias_lr},
            {"params": rest, "lr": config.critic_lr},
        ]
        return groups if rest else groups[:2]

    def _take_statistics(self) -> None:
        mean, inverse = self.normaliser.vectors()
        self._mean, self._inverse = torch.from_numpy(mean), torch.from_numpy(inverse)

    def normalised(self, obs: torch.Tensor) -> torch.Tensor:
        """(obs - mean) / std, limited, exactly as the exported policy does it."""
        return ((obs - self._mean) * self._inverse).clamp(-self.config.clip, self.config.clip)

    def first_memory(self, episodes: int) -> torch.Tensor:
        """(B, M, R, H) zeros: the recurrent state of every agent at the start of an episode."""
        if isinstance(self.actor, MlpActor):
            return torch.zeros(episodes, self.num_agents, 1, 1)
        start = self.actor.initial_state(episodes * self.num_agents)
        return start.unflatten(0, (episodes, self.num_agents))

    def play(self, seeds: Sequence[int]) -> Round:
        """One episode per seed with exploring agents, remembered; the records."""
        memory, before = self.first_memory(len(seeds)), []

        @torch.no_grad()
        def act(obs: torch.Tensor) -> torch.Tensor:
            nonlocal memory
            before.append(memory)
            head, memory = run(self.actor, self.normalised(obs).unsqueeze(0), memory)
            return self.choose(head[0])

        watch = remaining_time if self.config.state == "true" else None
        played, tape = play(self.scenario, seeds, act, self.config, watch)
        self.remember(tape, torch.stack(before, 1))
        played.bytes_exchanged = self.bytes_of_round(len(seeds))
        return played

    def remember(self, tape: dict[str, torch.Tensor], memory: torch.Tensor) -> None:
        """Store episodes (shapes in rounds.play; memory (E, T, M, R, H)) and take in their statistics."""
        obs, reward = tape["obs"], tape["reward"].mean(-1)
        world = tape.get("world", torch.zeros(*obs.shape[:2], 0))
        self.normaliser.update(obs.numpy())
        self._take_statistics()
        self.scale.update(reward)
        if world.numel():
            self.world_scale.update(world)
        rows = torch.cat([obs.flatten(2), world], -1)
        self.replay.add(rows, tape["action"].flatten(2), reward, memory.flatten(2, 3))

    @torch.no_grad()
    def batch(self) -> TensorDict:
        """A batch of chunks for TorchRL's losses, (L, B), time first: obs, memory, world, action, and next.

        obs (L, B, M, obs_dim) and world (L, B, world_dim) are normalised, action is (L, B, M N), memory (L,
        B, M, R, H) holds the recurrent state before the first step, L times; rewards are scaled and shaped.
        """
        config = self.config
        rows, action, reward, memory = self.replay.sample()
        split = self.num_agents * self.obs_dim
        obs = self.normalised(rows[..., :split].unflatten(-1, (self.num_agents, self.obs_dim)))
        world = obs.flatten(2)
        if config.state == "true":
            world = self.world_scale(rows[..., split:]).clamp(-config.clip, config.clip)
        memory = memory.unflatten(1, (self.num_agents, -1))
        start = config.burn_in
        if start:
            memory = run(self.actor, obs[:start], memory)[1]
        later = run(self.actor, obs[start : start + 1], memory)[1]
        reward = shaped(self.scale(reward), config.gamma, config.shaping)[start:]
        size = reward.shape
        over = torch.zeros(*size, 1, dtype=torch.bool)  # an episode only ever is truncated: every tail counts

        def repeated(state: torch.Tensor) -> torch.Tensor:
            return state.expand(size[0], *state.shape)

        here = {"obs": obs[start:-1], "world": world[start:-1], "memory": repeated(memory)}
        after = {"obs": obs[start + 1 :], "world": world[start + 1 :], "memory": repeated(later)}
        after |= {"reward": reward.unsqueeze(-1), "done": over, "terminated": over}
        return TensorDict(
            {**here, "action": action[start:], "next": TensorDict(after, batch_size=size)}, batch_size=size
        )

    def update(self) -> dict[str, float]:
        """One gradient step on all losses of a batch; what to log."""
        batch = self.batch()
        with torch.random.fork_rng(devices=[]):  # the losses draw from torch's global generator
            torch.manual_seed(int(torch.randint(2**62, (), generator=self.generator)))
            found = self.loss(batch)
        losses = [value for name, value in found.items() if name.startswith("loss")]
        self.optimiser.zero_grad()
        torch.stack(losses).sum().backward()
        parts = [group["params"] for group in self.optimiser.param_groups]
        nn.utils.clip_grad_norm_([*parts[0], *parts[1]], self.config.grad_clip)
        for rest in parts[2:]:
            nn.utils.clip_grad_norm_(rest, 10 * self.config.grad_clip)
        self.optimiser.step()
        self.targets.step()
        self.updates += 1
        share = max(1 - self.config.average, 4 / (self.updates + 4))  # Shamir, Zhang 2013, eq. (4), eta = 3
        with torch.no_grad():
            follow(self.averaged, self.actor, share)
        return check_losses({name: value.item() for name, value in found.items() if value.numel() == 1})

    def round(self, episodes: int) -> Round:
        """Play `episodes` at once, learn from them; the records."""
        played = self.play([native.train_seed(self.seed, self.episodes + index) for index in range(episodes)])
        self.episodes += episodes
        share = 1 / (1 + self.episodes / self.config.decay_episodes)
        slow, fast = self.optimiser.param_groups[:2]
        slow["lr"], fast["lr"] = self.config.actor_lr * share, self.config.bias_lr * share
        played.learning.update(self.extras())
        steps = max(1, round(self.config.updates_per_episode * episodes))
        played.learning.update(mean_of([self.update() for _ in range(steps)]))
        return played

    def bytes_of_round(self, episodes: int) -> int:
        """What a round of that many episodes would send; the formula is at the top of this file."""
        agents, servers, steps = self.num_agents, self.num_servers, self.steps
        action = 1 if self.config.discrete else 4
        trajectory = agents * (4 * self.obs_dim * (steps + 1) + action * servers * steps + 4 * steps)
        state = 4 * servers * (steps + 1) if self.config.state == "true" else 0
        parameters = sum(parameter.numel() for parameter in self.actor.parameters())
        statistics = 2 * (FEATURES_PER_SERVER + INTER_ARRIVAL_FEATURES)
        return episodes * (trajectory + state) + agents * 4 * (parameters + statistics)

    def policy(self) -> bytes:
        """The policy file of the averaged actor, which acts by its mean or best choice; one for all
        agents.
        """
        return export.policy_bytes([self.averaged], [self.normaliser], self.config.clip)

    def _tensors(self) -> dict[str, torch.Tensor]:
        """Parameters of the loss and their targets by name, the actor's among them."""
        return dict(self.loss.named_parameters()) | dict(self.loss.named_buffers())

    def state(self) -> dict[str, Any]:
        """All that the rest of the training depends on."""
        return {
            "episodes": self.episodes,
            "updates": self.updates,
            "loss": self._tensors(),
            "averaged": self.averaged.state_dict(),
            "optimiser": checkpoint.optimiser_state(self.optimiser),
            "normaliser": self.normaliser.state(),
            "scale": dict(vars(self.scale)),
            "world_scale": dict(vars(self.world_scale)),
            "replay": self.replay.state(),
            "generator": self.generator.get_state(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on from `state()`."""
        self.episodes, self.updates = state["episodes"], state["updates"]
        with torch.no_grad():
            for name, tensor in self._tensors().items():
                tensor.copy_(state["loss"][name])
        self.averaged.load_state_dict(state["averaged"])
        checkpoint.load_optimiser(self.optimiser, state["optimiser"])
        self.normaliser.load({name: array.numpy() for name, array in state["normaliser"].items()})
        vars(self.scale).update(state["scale"])
        vars(self.world_scale).update(state["world_scale"])
        self.replay.load(state["replay"])
        self.generator.set_state(state["generator"])
        self._take_statistics()


def remaining_time(batch: LoadBalanceBatch) -> torch.Tensor:
    """The `true` global state (B, N) [s]."""
    return torch.from_numpy(batch.remaining_time().astype(np.float32))
