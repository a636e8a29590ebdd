"""MASAC: soft actor-critic with decentralised actors and a central critic.

Haarnoja et al., "Soft Actor-Critic Algorithms and Applications", 2018, with the critic of Lowe et al.,
"Multi-Agent Actor-Critic for Mixed Cooperative-Competitive Environments", 2017: it sees all observations, all
actions and the global state. The loss is TorchRL's `SACLoss` on the joint action: the joint policy is the
product of the agents', so its log density is their sum, and as the reward is the team's, one pair of critics
does for all. What is common to central learners is in ctde.py, what is said on temperature and rates in
distr_lb.py holds here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
from torch import nn
from torchrl.modules import TanhNormal
from torchrl.objectives import SACLoss

from steelyard.agents import gaussian
from steelyard.agents.central_critic import CentralCritic
from steelyard.trainers.ctde import Actor, CentralTrainer, Ctde, run
from steelyard.trainers.rounds import require


@dataclass(frozen=True)
class Masac(Ctde):
    """Hyper-parameters; `--set algo.NAME=VALUE` changes one."""

    critic_hidden: int = 32
    """Units of the critics' layers."""
    alpha_lr: float = 1e-3
    """Learning rate of log alpha (Adam)."""
    alpha: float = 0.001
    """First temperature, for rewards of unit variance."""
    target_entropy: float = -1.0
    """Entropy per server and agent that the temperature is tuned to."""

    def check(self, steps: int) -> None:
        """UserError for values that make no sense."""
        super().check(steps)
        require("discrete", self.discrete, not self.discrete, "false: masac plays continuous weights alone")
        require("critic_hidden", self.critic_hidden, self.critic_hidden >= 1, "at least 1")
        for name in ("alpha", "alpha_lr"):
            require(name, getattr(self, name), 0 < getattr(self, name) < math.inf, "a number above 0")
        require("target_entropy", self.target_entropy, math.isfinite(self.target_entropy), "a number")


class Spread(nn.Module):
    """The joint Gaussian of all agents, before the squash."""

    def __init__(self, actor: Actor) -> None:
        super().__init__()
        self.actor = actor

    def forward(self, obs: torch.Tensor, memory: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and standard deviation (L, B, M N); obs (L, B, M, obs_dim), memory (L, B, M, R, H)."""
        head = run(self.actor, obs, memory[0])[0].flatten(2, 3)
        return head[..., 0], head[..., 1].clamp(gaussian.LOG_STD_MIN, gaussian.LOG_STD_MAX).exp()


class MasacTrainer(CentralTrainer):
    """MASAC on one scenario."""

    def build(self) -> None:
        """Actor and twin critics in TorchRL's loss."""
        config = self.config
        spread = TensorDictModule(Spread(self.actor), in_keys=["obs", "memory"], out_keys=["loc", "scale"])
        squash = ProbabilisticTensorDictModule(
            in_keys=["loc", "scale"],
            out_keys=["action"],
            distribution_class=TanhNormal,
            return_log_prob=True,
        )
        state_rows = 1 if config.state == "true" else 0
        critic = TensorDictModule(
            CentralCritic(self.num_agents, self.num_servers, config.critic_hidden, state_rows),
            in_keys=["obs", "world", "action"],
            out_keys=["state_action_value"],
        )
        self.loss = SACLoss(
            ProbabilisticTensorDictSequential(spread, squash),
            critic,
            num_qvalue_nets=2,  # each drawn afresh by the loss
            loss_function="l2",
            alpha_init=config.alpha,
            target_entropy=config.target_entropy * self.num_agents * self.num_servers,
        )

    def _groups(self) -> list[dict[str, Any]]:
        groups = super()._groups()
        rest = [p for p in groups[2]["params"] if p is not self.loss.log_alpha]
        alpha = {"params": [self.loss.log_alpha], "lr": self.config.alpha_lr}
        return [*groups[:2], {**groups[2], "params": rest}, alpha]

    def choose(self, head: torch.Tensor) -> torch.Tensor:
        """Sampled actions (B, M, N)."""
        return gaussian.sample(head, self.generator)[0]
