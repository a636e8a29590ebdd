"""The batch of racks as a TorchRL environment: one group of tensors per server."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from steelyard.envs.rack_batch import RackBatch
from steelyard.envs.rack_scenario import RackScenario
from steelyard.envs.rack_schema import rack_observation_space
from steelyard.envs.torchrl_env import BatchTorchRLEnv


class RackTorchRLEnv(BatchTorchRLEnv):
    """`num_envs` racks with batch size [B]: per agent "observation", "action", "reward"; for all "done".

    | Key | Shape | Meaning |
    |---|---|---|
    | `("server_i", "observation")` | (B, N + 9) float32 | what server i sees |
    | `("server_i", "action")` | (B, 2 N) float32 in [-1, 1], or (B, 2) int64 below N | its distributions |
    | `("server_i", "reward")` | (B, 1) float32 | its reward |
    | `"done"`, `"truncated"`, `"terminated"` | (B, 1) bool | truncated at the horizon; never terminated |

    `steelyard.envs.rack_v0` tells what the numbers mean, BatchTorchRLEnv of seeds, resets and `stats()`.
    """

    def __init__(
        self,
        scenario: RackScenario | str = "rack-hom-8x8",
        num_envs: int = 1,
        *,
        overrides: Sequence[str] = (),
        threads: int = 1,
        reward: str | None = None,
        discrete: bool = False,
        seed: int | None = None,
        device: torch.device | str = "cpu",
    ):
        batch = RackBatch(
            scenario,
            num_envs,
            overrides=overrides,
            threads=threads,
            reward=reward,
            discrete=discrete,
            autoreset=False,
        )
        servers = batch.num_servers
        choices = servers if discrete else 0
        super().__init__(batch, rack_observation_space(servers), choices, seed, device)
        self.scenario = batch.scenario
