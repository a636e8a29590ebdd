"""The network load-balancing game, version 0, as a PettingZoo environment: `parallel_env`, `env` (AEC) and
`raw_env`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from gymnasium.utils import EzPickle
from pettingzoo import AECEnv
from pettingzoo.utils import OrderEnforcingWrapper, parallel_to_aec

from steelyard.envs.batch import LoadBalanceBatch
from steelyard.envs.batch_env import RENDER_MODES, BatchParallelEnv
from steelyard.envs.scenario import Scenario


class LoadBalanceParallelEnv(BatchParallelEnv, EzPickle):
    """Several load balancers share a pool of servers; each sees its own flows only and sets its own weights.

    | | |
    |---|---|
    | Agents | `lb_0` ... `lb_<M-1>`, all act at every step |
    | Observation | `Box`, (12 N + 5,) float32, for N servers |
    | Action | `Box(-1, 1, (N,), float32)`, or `MultiDiscrete([3] * N)` with `discrete=True` |
    | Reward | fairness of the load that the agent sees; see `steelyard.envs.rewards` |
    | Step | `control.step_s` of the scenario, 0.5 s by default |
    | End | truncation of all agents at `episode.horizon_s`, 60 s by default; never termination |

    **Game.** Flows arrive, a router gives each to a balancer uniformly at random, and the balancer sends it
    for good to the server that minimises (q_j + 1) / w_j: q_j are its own open flows on server j, w_j the
    weights that its agent chose. The task goes on for ever; an episode is a window of it, so a learner must
    bootstrap at truncation.

    **Observation** (`steelyard.envs.schema`, version 1), server by server, then the balancer's own numbers:

    | Index | Meaning | Unit | Range |
    |---|---|---|---|
    | 11 j | flows of this balancer that are open on server j | flows | >= 0 |
    | 11 j + 1 ... 11 j + 5 | flow duration on server j: mean, p90, std, dmean, wdmean | s | >= 0 |
    | 11 j + 6 ... 11 j + 10 | flow completion time on server j: mean, p90, std, dmean, wdmean | s | >= 0 |
    | 11 N ... 11 N + 4 | time between flows at this balancer: mean, p90, std, dmean, wdmean | s | >= 0 |
    | 11 N + 5 + j | this agent's previous action for server j | 1 | -1 ... 1 |

    dmean and wdmean discount a sample by 0.9 per second of age; an empty reservoir is 0.

    **Action.** a_j in [-1, 1] sets the weight w_j = 2^(2 a_j), from 1/4 to 4; values outside are clipped, NaN
    is an error. A discrete action 0, 1, 2 sets the weight 1, 1.5, 2.

    **Reward.** `reward` and `measure` replace those of the scenario; by default minus the variance, over
    servers, of the weighted discounted mean flow duration that the agent sees (`vbf`, `durations`).

    **Infos**, the same for every agent: `t_s` [s], `seed` of the episode, and of the flows completed so far
    in it `sojourn_mean_s` [s], `flows`, `rejected`, `jain_mean`.

    **Seeds.** `reset(seed=s)` plays the arrivals and demands of seed s: the same flows meet any policy under
    the same seed, here and in `steelyard simulate`. A later `reset()` draws the next episode from a stream of
    training seeds that belongs to s and never meets a seed below 2^63.

    Arguments: `scenario` (a name, a TOML file or a Scenario), `overrides` (such as
    `["workload.arrival.rate=10"]`), `reward`, `measure`, `discrete`, `render_mode` (`human` prints, `ansi`
    returns text, `rgb_array` an image).
    """

    metadata: ClassVar[dict[str, Any]] = {
        "name": "load_balance_v0",
        "render_modes": list(RENDER_MODES),
        "render_fps": 2,
        "is_parallelizable": True,
    }

    def __init__(
        self,
        scenario: Scenario | str = "cluster-a-cpu",
        *,
        overrides: Sequence[str] = (),
        reward: str | None = None,
        measure: str | None = None,
        discrete: bool = False,
        render_mode: str | None = None,
    ):
        options: dict[str, Any] = {
            "overrides": overrides,
            "reward": reward,
            "measure": measure,
            "discrete": discrete,
        }
        EzPickle.__init__(self, scenario, render_mode=render_mode, **options)
        batch = LoadBalanceBatch(scenario, 1, autoreset=False, **options)
        self._face_balancers(batch, discrete, render_mode)


def parallel_env(**kwargs: Any) -> LoadBalanceParallelEnv:
    """The environment in which all agents act at once; arguments of LoadBalanceParallelEnv."""
    return LoadBalanceParallelEnv(**kwargs)


def raw_env(**kwargs: Any) -> AECEnv:
    """The turn-based form, without checks of the order of calls."""
    return parallel_to_aec(parallel_env(**kwargs))


def env(**kwargs: Any) -> AECEnv:
    """The turn-based form: agents act one after another, and the world moves when the last one has acted."""
    return OrderEnforcingWrapper(raw_env(**kwargs))
