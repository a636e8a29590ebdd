"""Ids of the Gymnasium environments."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

LOAD_BALANCE = "LoadBalance-v0"
RACK = "Rack-v0"


def register_envs() -> None:
    """Registers `LoadBalance-v0` and `Rack-v0` with Gymnasium, once; importing `steelyard.envs` sees to it.

    `gym.make("steelyard.envs:LoadBalance-v0")` makes the central agent's environment and
    `gym.make_vec(..., num_envs=B)` the native batch of it. Arguments go through: `scenario=`, `overrides=`,
    `reward=`, `discrete=`, and `measure=` for LoadBalance.
    """
    import gymnasium as gym

    if LOAD_BALANCE not in gym.registry:
        gym.register(
            LOAD_BALANCE,
            entry_point="steelyard.envs.central:LoadBalanceCentralEnv",
            vector_entry_point="steelyard.envs.vector:LoadBalanceVectorEnv",
        )
    if RACK not in gym.registry:
        gym.register(
            RACK,
            entry_point="steelyard.envs.rack_central:RackCentralEnv",
            vector_entry_point="steelyard.envs.rack_central:RackVectorEnv",
        )


class _WhenGymnasiumComes(MetaPathFinder):
    """Registers the ids right after somebody imports Gymnasium; many only ask whether it could be."""

    def __init__(self) -> None:
        self._asked = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "gymnasium" or self._asked:
            return None
        self._asked = True  # the search below comes through here again
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._asked = False
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_register(module: ModuleType) -> None:
                with contextlib.suppress(ValueError):
                    sys.meta_path.remove(self)
                execute(module)
                register_envs()

            spec.loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec


def register_with_gymnasium() -> None:
    """Registers now if Gymnasium is there, else as soon as it is imported.

    The scenarios live in this package too, and a command that only reads one must not wait for Gymnasium.
    """
    if "gymnasium" in sys.modules:
        register_envs()
    else:
        sys.meta_path.insert(0, _WhenGymnasiumComes())
