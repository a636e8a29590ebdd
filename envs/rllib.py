"""The game for people who use Ray RLlib themselves: a MultiAgentEnv and the central agent's environment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.rllib.env.multi_agent_env import MultiAgentEnv

LOAD_BALANCE = "steelyard/LoadBalance-v0"
LOAD_BALANCE_CENTRAL = "steelyard/LoadBalanceCentral-v0"
RACK = "steelyard/Rack-v0"
RACK_CENTRAL = "steelyard/RackCentral-v0"
KEYS = ("scenario", "overrides", "reward", "measure", "discrete")
"""Keys of env_config, the arguments of `load_balance_v0.parallel_env`."""
RACK_KEYS = ("scenario", "overrides", "reward", "discrete")
"""Those of racks, the arguments of `rack_v0.parallel_env`."""


def register_envs() -> None:
    """Registers with Ray Tune, for `config.environment(NAME, env_config={...})`:

    - `steelyard/LoadBalance-v0`: RLlib's MultiAgentEnv with one agent per balancer, `lb_0` ... `lb_<M-1>`;
    - `steelyard/LoadBalanceCentral-v0`: the Gymnasium environment of one agent that sees and sets all;
    - `steelyard/Rack-v0` and `steelyard/RackCentral-v0`: the same of a rack, with one agent per server.

    env_config may hold `scenario`, `overrides`, `reward`, `discrete`, and but for racks `measure`, with the
    meaning they have in `steelyard.envs.load_balance_v0` and `steelyard.envs.rack_v0`. Imports ray.
    """
    from ray.tune.registry import register_env

    register_env(LOAD_BALANCE, multi_agent_env)
    register_env(LOAD_BALANCE_CENTRAL, central_env)
    register_env(RACK, rack_multi_agent_env)
    register_env(RACK_CENTRAL, rack_central_env)


def multi_agent_env(env_config: dict[str, Any] | None = None) -> MultiAgentEnv:
    """The game as RLlib's MultiAgentEnv. UserError for an unknown key or a bad value."""
    from ray.rllib.env.wrappers.pettingzoo_env import ParallelPettingZooEnv

    from steelyard.envs.load_balance_v0 import parallel_env

    return ParallelPettingZooEnv(parallel_env(**_arguments(env_config)))


def central_env(env_config: dict[str, Any] | None = None) -> Any:
    """The central agent's Gymnasium environment. UserError for an unknown key or a bad value."""
    from steelyard.envs.central import LoadBalanceCentralEnv

    return LoadBalanceCentralEnv(**_arguments(env_config))


def rack_multi_agent_env(env_config: dict[str, Any] | None = None) -> MultiAgentEnv:
    """The rack as RLlib's MultiAgentEnv. UserError for an unknown key or a bad value."""
    from ray.rllib.env.wrappers.pettingzoo_env import ParallelPettingZooEnv

    from steelyard.envs.rack_v0 import parallel_env

    return ParallelPettingZooEnv(parallel_env(**_arguments(env_config, RACK_KEYS)))


def rack_central_env(env_config: dict[str, Any] | None = None) -> Any:
    """The Gymnasium environment of one agent for a rack. UserError for an unknown key or a bad value."""
    from steelyard.envs.rack_central import RackCentralEnv

    return RackCentralEnv(**_arguments(env_config, RACK_KEYS))


def _arguments(env_config: dict[str, Any] | None, keys: tuple[str, ...] = KEYS) -> dict[str, Any]:
    from steelyard.envs.errors import unknown_key

    given = dict(env_config or {})
    for key in given:
        if key not in keys:
            raise unknown_key("env_config.", key, keys)
    return given
