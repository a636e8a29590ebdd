"""The native batch as a TorchRL environment: one group of tensors per agent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from tensordict import TensorDict, TensorDictBase
from torchrl.data import Binary, Bounded, Composite, MultiCategorical, Unbounded
from torchrl.envs import EnvBase

from steelyard.envs.batch import LoadBalanceBatch
from steelyard.envs.native_batch import NativeBatch
from steelyard.envs.scenario import Scenario
from steelyard.envs.spaces import DISCRETE_ACTIONS, observation_space


class BatchTorchRLEnv(EnvBase):
    """A native batch with batch size [B]: per agent "observation", "action", "reward"; for all "done".

    One group per agent, and no dimension of agents, because GRUModule takes the last batch dimension for
    time. TorchRL resets finished worlds itself through `"_reset"`. `set_seed(s)` makes s the run's seed:
    world i plays the i-th training seed of run s, then its own stream. `stats()` tells the running statistics
    of each world's episode.
    """

    def __init__(
        self,
        batch: NativeBatch,
        observations: spaces.Box,
        choices: int,
        seed: int | None,
        device: torch.device | str,
    ):
        """observations: of one agent. choices of each number of an action; 0: a number from -1 to 1."""
        super().__init__(device=device, batch_size=[batch.num_envs])
        self.batch, self.agents = batch, list(batch.agents)
        self.group_map = {agent: [agent] for agent in self.agents}
        self._run_seed = seed
        self._joint = np.zeros(batch.action_shape, dtype=np.int64 if choices else np.float32)
        self._make_specs(observations, choices)

    def _make_specs(self, box: spaces.Box, choices: int) -> None:
        size, device = self.batch.num_envs, self.device
        low, high = (torch.as_tensor(end).expand(size, -1) for end in (box.low, box.high))
        seen = Bounded(low=low, high=high, shape=low.shape, dtype=torch.float32, device=device)
        paid = Unbounded(shape=(size, 1), dtype=torch.float32, device=device)
        over = Binary(n=1, shape=(size, 1), dtype=torch.bool, device=device)
        shape = (size, self.batch.action_shape[2])
        if choices:
            nvec = torch.full(shape, choices)
            moved = MultiCategorical(nvec, shape=shape, dtype=torch.int64, device=device)
        else:
            moved = Bounded(low=-1.0, high=1.0, shape=shape, dtype=torch.float32, device=device)
        self.observation_spec = self._per_agent("observation", seen)
        self.action_spec = self._per_agent("action", moved)
        self.reward_spec = self._per_agent("reward", paid)
        done = {key: over.clone() for key in ("done", "terminated", "truncated")}
        self.done_spec = Composite(done, shape=(size,), device=device)

    def _per_agent(self, key: str, spec: Any) -> Composite:
        groups = {agent: Composite({key: spec.clone()}, shape=self.batch_size) for agent in self.agents}
        return Composite(groups, shape=self.batch_size, device=self.device)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        del kwargs
        mask = None if tensordict is None else tensordict.get("_reset", None)
        if self._run_seed is not None:
            self.batch.reset(self._run_seed)
            self._run_seed = None
        elif mask is None:
            self.batch.reset()
        else:
            self.batch.reset_worlds(mask.reshape(-1).cpu().numpy())
        return self._output()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        for index, agent in enumerate(self.agents):
            self._joint[:, index] = tensordict.get((agent, "action")).cpu().numpy()
        self.batch.step(self._joint)
        result = self._output()
        rewards = torch.from_numpy(self.batch.buffers.rewards).to(self.device, copy=True)
        for index, agent in enumerate(self.agents):
            result.set((agent, "reward"), rewards[:, index, None])
        return result

    def _output(self) -> TensorDict:
        """Observations and flags as tensors of their own: the buffers are written again by the next call."""
        seen = torch.from_numpy(self.batch.buffers.observations).to(self.device, copy=True)
        over = torch.from_numpy(self.batch.buffers.truncated).to(self.device, copy=True)[:, None]
        groups = {
            agent: TensorDict({"observation": seen[:, index]}, batch_size=self.batch_size)
            for index, agent in enumerate(self.agents)
        }
        flags = {"done": over, "truncated": over.clone(), "terminated": torch.zeros_like(over)}
        return TensorDict({**groups, **flags}, batch_size=self.batch_size, device=self.device)

    def _set_seed(self, seed: int | None) -> None:
        self._run_seed = seed

    def stats(self) -> dict[str, torch.Tensor]:
        """Statistics of each world's episode so far, each (B,), as the batch's `episode_stats`."""
        return {name: torch.as_tensor(values) for name, values in self.batch.episode_stats().items()}


class LoadBalanceTorchRLEnv(BatchTorchRLEnv):
    """`num_envs` worlds with batch size [B]: per agent "observation", "action", "reward"; for all "done".

    | Key | Shape | Meaning |
    |---|---|---|
    | `("lb_i", "observation")` | (B, 12 N + 5) float32 | what balancer i sees |
    | `("lb_i", "action")` | (B, N) float32 in [-1, 1], or int64 in {0, 1, 2} | its weights |
    | `("lb_i", "reward")` | (B, 1) float32 | its reward |
    | `"done"`, `"truncated"`, `"terminated"` | (B, 1) bool | truncated at the horizon; never terminated |

    BatchTorchRLEnv tells of seeds, resets and `stats()`.
    """

    def __init__(
        self,
        scenario: Scenario | str = "cluster-a-cpu",
        num_envs: int = 1,
        *,
        overrides: Sequence[str] = (),
        threads: int = 1,
        reward: str | None = None,
        measure: str | None = None,
        discrete: bool = False,
        seed: int | None = None,
        device: torch.device | str = "cpu",
    ):
        batch = LoadBalanceBatch(
            scenario,
            num_envs,
            overrides=overrides,
            threads=threads,
            reward=reward,
            measure=measure,
            discrete=discrete,
            autoreset=False,
        )
        choices = len(DISCRETE_ACTIONS) if discrete else 0
        super().__init__(batch, observation_space(batch.num_servers), choices, seed, device)
        self.scenario = batch.scenario
