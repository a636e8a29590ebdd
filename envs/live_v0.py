"""The load-balancing game on a running testbed, version 0: `parallel_env`, `env` (AEC) and `raw_env`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pettingzoo import AECEnv
from pettingzoo.utils import OrderEnforcingWrapper, parallel_to_aec

from steelyard.envs.batch import load_scenario
from steelyard.envs.batch_env import RENDER_MODES, BatchParallelEnv
from steelyard.envs.live_world import LiveWorld, Traffic
from steelyard.envs.native_batch import NativeBatch
from steelyard.envs.scenario import Scenario
from steelyard.envs.schema import observation_size
from steelyard.envs.spaces import DISCRETE_ACTIONS


class LiveBatch(NativeBatch):
    """A batch of one world, a testbed: what learners step in the place of LoadBalanceBatch.

    pools: the shared-memory file of each balancer; traffic: who sends the flows, if not somebody else.
    """

    def __init__(
        self,
        scenario: Scenario | str,
        pools: Sequence[str | Path],
        *,
        traffic: Traffic | None = None,
        overrides: Sequence[str] = (),
        reward: str | None = None,
        measure: str | None = None,
        discrete: bool = False,
        autoreset: bool = True,
    ):
        """Attaches at the first reset. Raises UserError for bad input."""
        self.scenario = load_scenario(scenario, overrides)
        self.reward = reward if reward is not None else self.scenario.reward.kind
        self.measure = measure if measure is not None else self.scenario.reward.measure
        self.discrete = discrete
        self.world = LiveWorld(self.scenario, pools, self.reward, self.measure, traffic)
        agents = [f"lb_{agent}" for agent in range(self.scenario.num_agents)]
        servers = self.scenario.num_servers
        shape = (1, len(agents), servers)
        sizes = (1, servers, observation_size(servers))
        super().__init__(self.world, agents, sizes, shape, np.zeros(shape, np.float32), None, autoreset)

    def remaining_time(self) -> NDArray[np.float64]:
        """UserError: the simulator alone knows it."""
        return self.world.remaining_time()

    def _take_actions(self, actions: ArrayLike) -> None:
        if self.discrete:
            np.take(DISCRETE_ACTIONS, self._numbers(actions, len(DISCRETE_ACTIONS)), out=self._joint)
        else:
            np.clip(self._numbers(actions), -1.0, 1.0, out=self._joint, casting="same_kind")


class LiveParallelEnv(BatchParallelEnv):
    """`load_balance_v0` on real packets: the balancers are processes, the servers answer real requests.

    Agents, spaces, order of the observation, actions and rewards are those of
    `steelyard.envs.load_balance_v0`; a policy from there runs here. What differs:

    | | |
    |---|---|
    | Time | real: a step ends `control.step_s` (0.25 s) after the one before, however long agents think |
    | Observation | what the balancers published last, at most a fifth of a step old |
    | Reward | over `durations` alone, which balancers measure; `true` and `own` are the simulator's |
    | `infos` | `sojourn_mean_s`: mean flow completion time that balancers saw; `rejected`: resets |
    | Seed | names the flows, if `traffic` sends them; two episodes of one seed are still not the same |
    | `late_steps` in `infos` | steps that ended a whole step too late, since agents thought too long |

    Arguments: `scenario` (what the testbed is), `pools` (the shared-memory file of each balancer, as in its
    configuration), `traffic` (an object with `begin(seed)`, which is called at every reset; without it the
    flows come from elsewhere), `overrides`, `reward`, `measure`, `discrete`, `render_mode`.

    Raises UserError when a pool has no living balancer, and LiveError when one dies in an episode. `close()`
    tells the balancers to go on by themselves.
    """

    metadata: ClassVar[dict[str, Any]] = {
        "name": "live_v0",
        "render_modes": list(RENDER_MODES),
        "render_fps": 4,
        "is_parallelizable": True,
    }

    def __init__(
        self,
        scenario: Scenario | str = "testbed-2x4",
        *,
        pools: Sequence[str | Path],
        traffic: Traffic | None = None,
        overrides: Sequence[str] = (),
        reward: str | None = None,
        measure: str | None = None,
        discrete: bool = False,
        render_mode: str | None = None,
    ):
        self.batch = LiveBatch(
            scenario,
            pools,
            traffic=traffic,
            overrides=overrides,
            reward=reward,
            measure=measure,
            discrete=discrete,
            autoreset=False,
        )
        self._face_balancers(self.batch, discrete, render_mode)

    def close(self) -> None:
        """The balancers go on without these agents."""
        self.batch.world.close()

    def _infos(self) -> dict[str, dict[str, Any]]:
        late = self.batch.world.late_steps
        return {agent: info | {"late_steps": late} for agent, info in super()._infos().items()}


def parallel_env(**kwargs: Any) -> LiveParallelEnv:
    """The environment in which all agents act at once; arguments of LiveParallelEnv."""
    return LiveParallelEnv(**kwargs)


def raw_env(**kwargs: Any) -> AECEnv:
    """The turn-based form, without checks of the order of calls."""
    return parallel_to_aec(parallel_env(**kwargs))


def env(**kwargs: Any) -> AECEnv:
    """The turn-based form: agents act one after another, and the step begins when the last one has acted."""
    return OrderEnforcingWrapper(raw_env(**kwargs))
