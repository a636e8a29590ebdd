"""MADDPG: deterministic decentralised actors and a central critic.

Lowe et al., "Multi-Agent Actor-Critic for Mixed Cooperative-Competitive Environments", 2017. The critic sees
all observations, all actions and the global state; as the reward is the team's, one does for all agents. The
loss is TorchRL's `DDPGLoss` with delayed actor and critic. What is common to central learners is in ctde.py.
Exploration is Gaussian noise on the action.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.objectives import DDPGLoss

from steelyard.agents.central_critic import CentralCritic
from steelyard.trainers.ctde import Actor, CentralTrainer, Ctde, run
from steelyard.trainers.rounds import require


@dataclass(frozen=True)
class Maddpg(Ctde):
    """Hyper-parameters; `--set algo.NAME=VALUE` changes one."""

    critic_hidden: int = 32
    """Units of the critic's layers."""
    noise: float = 0.2
    """Standard deviation of the exploring noise on actions in [-1, 1]."""

    def check(self, steps: int) -> None:
        """UserError for values that make no sense."""
        super().check(steps)
        require("discrete", self.discrete, not self.discrete, "false: maddpg plays continuous weights alone")
        require("critic_hidden", self.critic_hidden, self.critic_hidden >= 1, "at least 1")
        require("noise", self.noise, 0 <= self.noise <= 1, "from 0 to 1")


class Action(nn.Module):
    """The actions of all agents."""

    def __init__(self, actor: Actor) -> None:
        super().__init__()
        self.actor = actor

    def forward(self, obs: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        """(L, B, M N) in [-1, 1]; obs (L, B, M, obs_dim), memory (L, B, M, R, H)."""
        return torch.tanh(run(self.actor, obs, memory[0])[0].flatten(2))


class MaddpgTrainer(CentralTrainer):
    """MADDPG on one scenario."""

    deterministic = True

    def build(self) -> None:
        """Actor and critic in TorchRL's loss."""
        state_rows = 1 if self.config.state == "true" else 0
        critic = CentralCritic(self.num_agents, self.num_servers, self.config.critic_hidden, state_rows)
        self.loss = DDPGLoss(
            TensorDictModule(Action(self.actor), in_keys=["obs", "memory"], out_keys=["action"]),
            TensorDictModule(critic, in_keys=["obs", "world", "action"], out_keys=["state_action_value"]),
            delay_actor=True,
            delay_value=True,
        )

    def choose(self, head: torch.Tensor) -> torch.Tensor:
        """Noisy actions (B, M, N)."""
        action = torch.tanh(head.squeeze(-1))
        noise = self.config.noise * torch.randn(action.shape, generator=self.generator)
        return (action + noise).clamp(-1, 1)
