"""RLlib's learners with one thing of our own: constants learn faster than what follows features."""

from __future__ import annotations

from typing import Any

import torch
from ray.rllib.algorithms.appo.torch.appo_torch_learner import APPOTorchLearner
from ray.rllib.algorithms.impala.torch.impala_torch_learner import IMPALATorchLearner
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner

from steelyard.trainers.rllib.nets import slow_and_fast

_RATE = "rate"  # key of an optimiser's group: its rate as a multiple of the optimiser's


class Rates:
    """Learning rates by group of parameters, for RLlib's learners."""

    @staticmethod
    def _set_optimizer_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
        for group in optimizer.param_groups:
            group["lr"] = lr * group.get(_RATE, 1.0)


def actor_groups(module: Any) -> list[dict[str, Any]]:
    """The actor's parameters as groups of an optimiser."""
    slow, fast = slow_and_fast(module.actor)
    return [{"params": slow}, {"params": fast, _RATE: module.model_config["bias_rate"]}]


class _OneOptimiser(Rates):
    """Actor and value function by one optimiser."""

    def configure_optimizers_for_module(self: Any, module_id: str, config: Any = None) -> None:
        """Registers it with RLlib."""
        module = self._module[module_id]
        groups = [*actor_groups(module), {"params": list(module.value.parameters())}]
        everything = [parameter for group in groups for parameter in group["params"]]
        optimiser = torch.optim.Adam(groups)
        self.register_optimizer(
            module_id=module_id, optimizer=optimiser, params=everything, lr_or_lr_schedule=config.lr
        )


class PpoLearner(_OneOptimiser, PPOTorchLearner):
    """PPO."""


class AppoLearner(_OneOptimiser, APPOTorchLearner):
    """APPO."""


class ImpalaLearner(_OneOptimiser, IMPALATorchLearner):
    """IMPALA."""
