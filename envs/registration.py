"""Ids of the Gymnasium environments."""

from __future__ import annotations

import gymnasium as gym

LOAD_BALANCE = "LoadBalance-v0"


def register_envs() -> None:
    """Registers `LoadBalance-v0` with Gymnasium, once; importing `steelyard.envs` has done it already.

    `gym.make("steelyard.envs:LoadBalance-v0")` makes the central agent's environment and `gym.make_vec(...,
    num_envs=B)` the native batch of it. Arguments go through: `scenario=`, `overrides=`, `reward=`,
    `measure=`, `discrete=`.
    """
    if LOAD_BALANCE not in gym.registry:
        gym.register(
            LOAD_BALANCE,
            entry_point="steelyard.envs.central:LoadBalanceCentralEnv",
            vector_entry_point="steelyard.envs.vector:LoadBalanceVectorEnv",
        )
