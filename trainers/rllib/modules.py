"""RLModules around the actors of agents/: what RLlib trains is what agents/export.py reads.

An action of the stochastic policy is the number *before* the squash: a Gaussian has an entropy and a
divergence, its squashed form has none. `to_env` squashes. Observations are normalised inside the module by
statistics that were fixed beforehand (see game.fit) and travel with its weights.
"""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from ray.rllib.core.columns import Columns
from ray.rllib.core.distribution.torch.torch_distribution import TorchDiagGaussian, TorchMultiCategorical
from ray.rllib.core.learner.utils import make_target_network
from ray.rllib.core.rl_module.apis import (
    TARGET_NETWORK_ACTION_DIST_INPUTS,
    InferenceOnlyAPI,
    TargetNetworkAPI,
    ValueFunctionAPI,
)
from ray.rllib.core.rl_module.torch import TorchRLModule

from steelyard.trainers.rllib import nets
from steelyard.trainers.rllib.game import OWN_KEY, STATE_KEY

STATE = "h"
"""Key of the recurrent state (B, R, H) in STATE_IN and STATE_OUT."""


class ActorModule(TorchRLModule, InferenceOnlyAPI):
    """A normalised actor, recurrent or not; obs (B, D), or (B, T, D) if recurrent."""

    mean: torch.Tensor
    inverse: torch.Tensor

    def setup(self) -> None:
        """Makes the networks from `model_config`."""
        config = self.model_config
        self.actor = nets.make_actor(config)
        self.register_buffer("mean", torch.tensor(config["mean"], dtype=torch.float32))
        self.register_buffer("inverse", torch.tensor(config["inverse"], dtype=torch.float32))
        self.action_dist_cls = TorchDiagGaussian
        if config["discrete"]:
            heads = config["num_servers"] * (config["num_agents"] if config["policies"] == "central" else 1)
            self.action_dist_cls = TorchMultiCategorical.get_partial_dist_cls(input_lens=[3] * heads)

    def get_initial_state(self) -> dict[str, torch.Tensor]:
        """The state of one sequence at its start, (R, H); nothing if not recurrent."""
        start = nets.initial_state(self.actor)
        return {} if start is None else {STATE: start}

    def get_non_inference_attributes(self) -> list[str]:
        """What only learning needs."""
        return ["value"]

    def own(self, obs: Any) -> torch.Tensor:
        """The agent's own observation, normalised, of what an environment gives."""
        return self._normalised(obs[OWN_KEY] if isinstance(obs, dict) else obs)

    def _normalised(self, obs: torch.Tensor) -> torch.Tensor:
        copies = obs.shape[-1] // len(self.mean)  # a state is several observations end to end
        mean, inverse = (each.repeat(copies) for each in (self.mean, self.inverse))
        limit = self.model_config["clip"]
        return ((obs - mean) * inverse).clamp(-limit, limit)

    def head(self, batch: dict[str, Any], actor: nets.Actor | None = None) -> tuple[Any, Any]:
        """Head (.., N, 2 or 3) and the next state."""
        state = batch[Columns.STATE_IN][STATE] if self.model_config["recurrent"] else None
        return nets.run_actor(actor or self.actor, self.own(batch[Columns.OBS]), state)

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        head, state = self.head(batch)
        out = {Columns.ACTION_DIST_INPUTS: nets.as_logits(head, self.model_config["discrete"])}
        return out if state is None else out | {Columns.STATE_OUT: {STATE: state}}

    def draw(self, logits: torch.Tensor, noise: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """Sampled actions (B, N) and the logarithm of their density (B,)."""
        if self.model_config["discrete"]:
            chances = logits.unflatten(-1, (-1, 3)).softmax(-1)
            action = torch.multinomial(chances.flatten(0, 1), 1, generator=noise).view(chances.shape[:-1])
        else:
            mean, log_std = logits.chunk(2, -1)
            action = mean + log_std.exp() * torch.randn(mean.shape, generator=noise)
        return action, self.get_exploration_action_dist_cls().from_logits(logits).logp(action)

    def to_env(self, actions: torch.Tensor) -> NDArray[Any]:
        """What the environment is given for sampled actions (B, N)."""
        return (actions if self.model_config["discrete"] else torch.tanh(actions)).numpy()

    def likeliest(self, logits: torch.Tensor) -> NDArray[Any]:
        """What the environment is given when the policy does not explore, as its exported form does."""
        if self.model_config["discrete"]:
            return logits.unflatten(-1, (-1, 3)).argmax(-1).numpy()
        return torch.tanh(logits.chunk(2, -1)[0]).numpy()


class ActorCriticModule(ActorModule, ValueFunctionAPI):
    """With a value function on the agent's observation and, if there is one, on the state."""

    def setup(self) -> None:
        """Makes the networks."""
        super().setup()
        config = self.model_config
        views = 1 + (config["num_agents"] if config["sees_state"] else 0)
        inputs = len(config["mean"]) * (config["num_agents"] if config["policies"] == "central" else views)
        self.value = nets.mlp(inputs, config["critic_hidden"])

    def compute_values(self, batch: dict[str, Any], embeddings: Any | None = None) -> torch.Tensor:
        """V (..), of observations alone: reservoirs hold the last seconds."""
        obs = batch[Columns.OBS]
        seen = self.own(obs)
        if isinstance(obs, dict):
            seen = torch.cat([seen, self._normalised(obs[STATE_KEY])], -1)
        return self.value(seen).squeeze(-1)


class LaggingModule(ActorCriticModule, TargetNetworkAPI):
    """With an older copy of the actor, which APPO measures its steps against."""

    def make_target_networks(self) -> None:
        """The older copy."""
        self.old_actor = make_target_network(self.actor)

    def get_target_network_pairs(self) -> list[tuple[Any, Any]]:
        """What follows what."""
        return [(self.actor, self.old_actor)]

    def forward_target(self, batch: dict[str, Any]) -> dict[str, Any]:
        """The older copy's distribution."""
        head, _ = self.head(batch, self.old_actor)
        return {TARGET_NETWORK_ACTION_DIST_INPUTS: nets.as_logits(head, self.model_config["discrete"])}

    def get_non_inference_attributes(self) -> list[str]:
        """What only learning needs."""
        return [*super().get_non_inference_attributes(), "old_actor"]
