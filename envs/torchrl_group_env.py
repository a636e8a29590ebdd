"""The native batch as a TorchRL environment with all balancers in one group, as BenchMARL wants it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data import Binary, Bounded, Categorical, Composite, Unbounded
from torchrl.envs import EnvBase

from steelyard.envs.batch import LoadBalanceBatch
from steelyard.envs.errors import bad_value
from steelyard.envs.scenario import Scenario
from steelyard.envs.spaces import DISCRETE_ACTIONS, observation_space

GROUP = "agents"
STATES = ("true", "obs")


class LoadBalanceGroupEnv(EnvBase):
    """`num_envs` worlds with batch size [B], the M balancers as a dimension of each tensor.

    | Key | Shape | Meaning |
    |---|---|---|
    | `("agents", "observation")` | (B, M, 12 N + 5) float32 | what each balancer sees |
    | `("agents", "action")` | (B, M, N) float32 in [-1, 1], or (B, M) int64 in 0 ... 2 N | its weights |
    | `("agents", "reward")` | (B, M, 1) float32 | its reward |
    | `"state"` | (B, M (12 N + 5) + N) float32 | with `state = "true"`: all observations end to end, then \
log(1 + true remaining time [s]) of each server, for critics and mixers that stay behind after training |
    | `"done"`, `"truncated"`, `"terminated"` | (B, 1) bool | truncated at the horizon; never terminated |

    Discrete actions are a step of the weights, not the weights: 3^N joint choices would be too many for one
    head. Every server has a level 0, 1 or 2 with the weights 1, 1.5 and 2; an episode starts at 0. Action 0
    keeps the levels, action 1 + j raises that of server j by one, action 1 + N + j lowers it, within 0 to 2.
    The levels in force are part of the observation (its last N entries), so nothing is hidden.

    TorchRL resets finished worlds itself through `"_reset"`. `set_seed(s)` makes s the run's seed: world i
    plays the i-th training seed of run s, then its own stream. `stats()` tells the running statistics of each
    world's episode. Raises UserError for bad input.
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
        state: str = "obs",
        seed: int | None = None,
        device: torch.device | str = "cpu",
    ):
        if state not in STATES:
            raise bad_value("state", state, " or ".join(STATES))
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
        super().__init__(device=device, batch_size=[batch.num_envs])
        self.batch, self.scenario, self.discrete, self.state = batch, batch.scenario, discrete, state
        self.agents = [f"lb_{agent}" for agent in range(batch.num_agents)]
        self.group_map = {GROUP: self.agents}
        self._run_seed = seed
        self._levels = np.zeros((batch.num_envs, batch.num_agents, batch.num_servers), dtype=np.int64)
        self._make_specs()

    def _make_specs(self) -> None:
        batch, device = self.batch, self.device
        size, agents, servers = batch.num_envs, batch.num_agents, batch.num_servers
        box = observation_space(servers)
        low, high = (torch.as_tensor(end).expand(size, agents, -1) for end in (box.low, box.high))
        seen = Bounded(low=low, high=high, shape=low.shape, dtype=torch.float32, device=device)
        paid = Unbounded(shape=(size, agents, 1), dtype=torch.float32, device=device)
        over = Binary(n=1, shape=(size, 1), dtype=torch.bool, device=device)
        if self.discrete:
            moved = Categorical(1 + 2 * servers, shape=(size, agents), dtype=torch.int64, device=device)
        else:
            joint = (size, agents, servers)
            moved = Bounded(low=-1.0, high=1.0, shape=joint, dtype=torch.float32, device=device)
        observed = {GROUP: self._group("observation", seen)}
        if self.state == "true":
            shape = (size, agents * batch.obs_dim + servers)
            observed["state"] = Unbounded(shape=shape, dtype=torch.float32, device=device)
        self.observation_spec = Composite(observed, shape=(size,), device=device)
        self.action_spec = Composite({GROUP: self._group("action", moved)}, shape=(size,), device=device)
        self.reward_spec = Composite({GROUP: self._group("reward", paid)}, shape=(size,), device=device)
        done = {key: over.clone() for key in ("done", "terminated", "truncated")}
        self.done_spec = Composite(done, shape=(size,), device=device)

    def _group(self, key: str, spec: Any) -> Composite:
        return Composite({key: spec}, shape=(self.batch.num_envs, self.batch.num_agents), device=self.device)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        del kwargs
        mask = None if tensordict is None else tensordict.get("_reset", None)
        if self._run_seed is not None or mask is None:
            self.batch.reset(self._run_seed)
            self._run_seed = None
            self._levels[:] = 0
        else:
            which = mask.reshape(-1).cpu().numpy()
            self.batch.reset_worlds(which)
            self._levels[which] = 0
        return self._output()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        action = tensordict.get((GROUP, "action")).detach().cpu().numpy()
        self.batch.step(self._moved(action) if self.discrete else action)
        result = self._output()
        rewards = torch.from_numpy(self.batch.buffers.rewards).to(self.device, copy=True)
        result.set((GROUP, "reward"), rewards.unsqueeze(-1))
        return result

    def _moved(self, action: np.ndarray) -> np.ndarray:
        """Levels (B, M, N) after steps (B, M)."""
        servers = self.batch.num_servers
        which = (action[..., None] - 1) % servers == np.arange(servers)
        change = np.where(action == 0, 0, np.where(action <= servers, 1, -1))[..., None]
        np.clip(self._levels + which * change, 0, len(DISCRETE_ACTIONS) - 1, out=self._levels)
        return self._levels

    def _output(self) -> TensorDict:
        """Observations and flags as tensors of their own: the buffers are written again by the next call."""
        seen = torch.from_numpy(self.batch.buffers.observations).to(self.device, copy=True)
        over = torch.from_numpy(self.batch.buffers.truncated).to(self.device, copy=True)[:, None]
        group = TensorDict({"observation": seen}, batch_size=seen.shape[:2])
        parts = {GROUP: group, "done": over, "truncated": over.clone(), "terminated": torch.zeros_like(over)}
        if self.state == "true":
            remaining = torch.from_numpy(self.batch.remaining_time()).to(self.device, torch.float32)
            parts["state"] = torch.cat([seen.flatten(1), remaining.log1p()], -1)
        return TensorDict(parts, batch_size=self.batch_size, device=self.device)

    def _set_seed(self, seed: int | None) -> None:
        self._run_seed = seed

    def stats(self) -> dict[str, torch.Tensor]:
        """Statistics of the flows completed so far in each world's episode, each (B,): sojourn_mean_s [s],
        flows, ...
        """
        return {name: torch.as_tensor(values) for name, values in self.batch.episode_stats().items()}
