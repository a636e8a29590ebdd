"""QMIX-LB and VDN: recurrent agents with discrete weights, their values mixed to one for the team.

Rashid et al., "QMIX: Monotonic Value Function Factorisation for Deep Multi-Agent Reinforcement Learning",
2018, as the comparison of Distr-LB has it (Yao, Ding, 2022: discrete weights, a mixer of 32 units whose
weights a hypernetwork makes from the global state); Sunehag et al., "Value-Decomposition Networks for
Cooperative Multi-Agent Learning", 2018, where the mixer is the sum. The loss, the mixers and the targets
are TorchRL's (`QMixerLoss`, `QMixer`, `VDNMixer`, `SoftUpdate`); what central learners share is in ctde.py.

An agent chooses one of three weights for each of N servers: 3^N joint choices. Its value is a sum over
servers of heads of its own recurrent network, Q_i = sum_j q_ij(observations, choice_j): a value decomposition
within the agent, so that the best joint choice is the best choice of every head. The exported policy takes
it. To `QMixerLoss` every head is an agent; the mixer adds up those of one balancer before it mixes balancers.

Exploration is epsilon-greedy, every head by itself. All choices at random balance no worse than LSQ, and
with gamma .5 the values of a random policy already rank the choices, so epsilon falls slowly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.modules import QMixer, VDNMixer
from torchrl.objectives import QMixerLoss

from steelyard.trainers.ctde import Actor, CentralTrainer, Ctde, run
from steelyard.trainers.rounds import require

CHOICES = 3
ACTION_VALUE, CHOSEN, ACTION = ("agents", "action_value"), ("agents", "chosen_action_value"), "action"


@dataclass(frozen=True)
class Vdn(Ctde):
    """Hyper-parameters; `--set algo.NAME=VALUE` changes one."""

    discrete: bool = True
    """Weights {1, 1.5, 2}; there is no other way to play: what agents learn is a value for each choice."""
    actor_lr: float = 2e-4
    """Learning rate of the agents' network (Adam), but for:"""
    bias_lr: float = 2e-3
    """Learning rate of its constants: the bias of the head and, if `shared`, those of the servers."""
    epsilon: float = 1.0
    """Share of random choices at first."""
    epsilon_last: float = 0.1
    """Share of random choices after:"""
    epsilon_episodes: float = 200.0
    """Episodes over which epsilon falls, linearly."""

    def check(self, steps: int) -> None:
        """UserError for values that make no sense."""
        super().check(steps)
        mine = type(self).__name__.lower()
        require("discrete", self.discrete, self.discrete, f"true: {mine} plays discrete weights alone")
        require("epsilon", self.epsilon, 0 <= self.epsilon <= 1, "from 0 to 1")
        last = self.epsilon_last
        require("epsilon_last", last, 0 <= last <= self.epsilon, f"from 0 to {self.epsilon}, algo.epsilon")
        fall = self.epsilon_episodes
        require("epsilon_episodes", fall, 0 < fall < math.inf, "a number above 0")


@dataclass(frozen=True)
class Qmix(Vdn):
    """Hyper-parameters: those of VDN, and:"""

    mixer_units: int = 32
    """Units of the monotonic mixer, whose weights a hypernetwork makes from the global state."""

    def check(self, steps: int) -> None:
        """UserError for values that make no sense."""
        super().check(steps)
        require("mixer_units", self.mixer_units, self.mixer_units >= 1, "at least 1")


class Heads(nn.Module):
    """Values of all heads of all agents over a sequence."""

    def __init__(self, actor: Actor) -> None:
        super().__init__()
        self.actor = actor

    def forward(self, obs: torch.Tensor, memory: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(L, B, M N, 3), and the best of each (.., 1); obs (L, B, M, obs_dim), memory (L, B, M, R, H)."""
        values = run(self.actor, obs, memory[0])[0].flatten(2, 3)
        return values, values.max(-1, keepdim=True).values


class TeamValue(nn.Module):
    """From the chosen values of all heads to one of the team."""

    def __init__(self, mixer: QMixer | VDNMixer) -> None:
        super().__init__()
        self.mixer = mixer

    def forward(self, chosen: torch.Tensor, world: torch.Tensor) -> torch.Tensor:
        """(L, B, 1) from chosen (L, B, M N, 1) and world (L, B, world_dim)."""
        agents = chosen.unflatten(-2, (self.mixer.n_agents, -1)).sum(-2)  # (L, B, M, 1)
        return self.mixer(agents, world) if self.mixer.needs_state else self.mixer(agents)


class QmixTrainer(CentralTrainer):
    """QMIX or VDN on one scenario."""

    def build(self) -> None:
        """Agents' heads and the mixer in TorchRL's loss."""
        config, count = self.config, self.num_agents
        shape = torch.Size([self.world_dim])
        self.mixer = (
            QMixer(state_shape=shape, mixing_embed_dim=config.mixer_units, n_agents=count, device="cpu")
            if isinstance(config, Qmix)
            else VDNMixer(n_agents=count, device="cpu")
        )
        heads = TensorDictModule(
            Heads(self.actor), in_keys=["obs", "memory"], out_keys=[ACTION_VALUE, CHOSEN]
        )
        team = TensorDictModule(
            TeamValue(self.mixer), in_keys=[CHOSEN, "world"], out_keys=["chosen_action_value"]
        )
        self.loss = QMixerLoss(heads, team, delay_value=True, action_space="categorical")
        self.loss.set_keys(action=ACTION)

    @property
    def epsilon(self) -> float:
        """Share of random choices now."""
        config = self.config
        left = max(0.0, 1 - self.episodes / config.epsilon_episodes)
        return config.epsilon_last + (config.epsilon - config.epsilon_last) * left

    def extras(self) -> dict[str, float]:
        """Epsilon, for the log."""
        return {"epsilon": self.epsilon}

    def choose(self, head: torch.Tensor) -> torch.Tensor:
        """Choices (B, M, N): a random one with probability epsilon, the best otherwise."""
        size, draw = head.shape[:-1], self.generator
        randomly = torch.rand(size, generator=draw) < self.epsilon
        return torch.where(randomly, torch.randint(CHOICES, size, generator=draw), head.argmax(-1))
