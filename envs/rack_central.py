"""The rack with one agent for all servers: a Gymnasium environment, and many of them at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.envs.central import BatchCentralEnv
from steelyard.envs.rack_batch import RackBatch
from steelyard.envs.rack_scenario import RackScenario
from steelyard.envs.rack_schema import rack_action_space, rack_observation_space
from steelyard.envs.rack_v0 import rack_info, render_rack
from steelyard.envs.vector import BatchVectorEnv


class RackCentralEnv(BatchCentralEnv):
    """The rack game with one agent for all N servers.

    | | |
    |---|---|
    | Observation | `Box`, (N (N + 9),) float32: the observations of `server_0` ... end to end |
    | Action | `Box(-1, 1, (2 N N,), float32)`, or `MultiDiscrete([N, N] * N)`: of `server_0`, ... |
    | Reward | mean of the servers' rewards |
    | End | truncation at `episode.horizon_s`; never termination |

    Indices and units within each observation, the meaning of actions, seeds and infos are those of
    `steelyard.envs.rack_v0.RackParallelEnv`.
    """

    def __init__(
        self,
        scenario: RackScenario | str = "rack-hom-8x8",
        *,
        overrides: Sequence[str] = (),
        reward: str | None = None,
        discrete: bool = False,
        render_mode: str | None = None,
    ):
        batch = RackBatch(scenario, 1, overrides=overrides, reward=reward, discrete=discrete, autoreset=False)
        self.scenario, self._game = batch.scenario, batch
        size = (batch.num_servers, batch.num_servers)
        actions = rack_action_space(*size, discrete=discrete)
        super().__init__(batch, rack_observation_space(*size), actions, render_mode)

    def render(self) -> str | NDArray[np.uint8] | None:  # type: ignore[override]
        """The moment as `render_mode` says: text, an image (height, 480, 3) uint8, or printed text."""
        return render_rack(self._game, self._steps, self.render_mode)

    def _info(self) -> dict[str, Any]:
        return {**rack_info(self._game, 0), "t_s": self._steps * self._game.window_s}


class RackVectorEnv(BatchVectorEnv):
    """`num_envs` copies of RackCentralEnv, stepped by native threads; actions (B, 2 N N).

    Infos: `latency_mean_us`, `tasks`, `migrations`, `steals`, `imbalance_us` and `seed`. BatchVectorEnv tells
    of autoreset, seeds and copies.
    """

    def __init__(
        self,
        num_envs: int = 1,
        scenario: RackScenario | str = "rack-hom-8x8",
        *,
        overrides: Sequence[str] = (),
        threads: int = 1,
        reward: str | None = None,
        discrete: bool = False,
        copy: bool = True,
        render_mode: str | None = None,
    ):
        batch = RackBatch(
            scenario, num_envs, overrides=overrides, threads=threads, reward=reward, discrete=discrete
        )
        self.scenario = batch.scenario
        size = (batch.num_servers, batch.num_servers)
        actions = rack_action_space(*size, discrete=discrete)
        super().__init__(batch, rack_observation_space(*size), actions, copy, render_mode)
