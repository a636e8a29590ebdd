"""The games: PettingZoo, Gymnasium and batched environments, scenarios, observations and rewards.

- `load_balance_v0`: PettingZoo, one agent per balancer (`parallel_env`, `env`)
- `LoadBalance-v0`: Gymnasium id of the central agent (`gym.make("steelyard.envs:LoadBalance-v0")`)
- `rack_v0`: PettingZoo, one agent per server of a rack; `Rack-v0`: its central agent's Gymnasium id
- `batch.LoadBalanceBatch`: B worlds stepped in native threads; `vector` and `torchrl_env` are its faces
- `rack_batch.RackBatch`: B racks, likewise; `rack_central` and `rack_torchrl_env` are its faces
- `scenario.Scenario`, `rack_scenario.RackScenario`: what defines a game, read from TOML
"""

from steelyard.envs.registration import register_envs, register_with_gymnasium

register_with_gymnasium()

__all__ = ["register_envs"]
