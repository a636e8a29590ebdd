"""The rack game, version 0, as a PettingZoo environment: `parallel_env`, `env` (AEC) and `raw_env`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from gymnasium.utils import EzPickle
from numpy.typing import NDArray
from pettingzoo import AECEnv
from pettingzoo.utils import OrderEnforcingWrapper, parallel_to_aec

from steelyard.envs.batch_env import RENDER_MODES, BatchParallelEnv, show
from steelyard.envs.rack_batch import RackBatch
from steelyard.envs.rack_render import render_image, render_text
from steelyard.envs.rack_scenario import RackScenario
from steelyard.envs.rack_schema import rack_action_space, rack_observation_space


class RackParallelEnv(BatchParallelEnv, EzPickle):
    """The servers of a rack share their work: each gives tasks away as they come, and asks others for work.

    | | |
    |---|---|
    | Agents | `server_0` ... `server_<N-1>`, all act at every step |
    | Observation | `Box`, (N + 9,) float32, not negative |
    | Action | `Box(-1, 1, (2 N,), float32)`, or `MultiDiscrete([N, N])` with `discrete=True` |
    | Reward | Malcolm's payoff -I - C_i, or the potential phi, the same for all |
    | Step | one window: `loads.broadcast_period_s` of the scenario, 100 us by default |
    | End | truncation of all agents at `episode.horizon_s`; never termination |

    **Game** (Malcolm). Tasks arrive at servers. A server keeps a task or migrates it, once, to another; when
    it finishes a task and few wait there, it may ask another for one. Both are draws from distributions that
    its agent sets for a window. At the end of each window the servers tell each other their loads, which
    arrive after the delay of a message. The task goes on for ever; an episode is a part of it, so a learner
    must bootstrap at truncation.

    **Observation** (`steelyard.envs.rack_schema`, version 1), loads in units of `game.load_unit_s`:

    | Index | Meaning | Unit |
    |---|---|---|
    | j | load x_j = tasks / estimated service rate of server j as last heard; its own now | load unit |
    | N | tasks in this server | tasks |
    | N + 1 | tasks that wait in it | tasks |
    | N + 2, N + 3 | idle workers, workers | workers |
    | N + 4 | mean service time of a task on one worker, as estimated | load unit |
    | N + 5 ... N + 8 | in the last window: tasks arrived, given away, requests made, tasks served | 1 |

    **Action.** Numbers 0 ... N - 1 are logits of migration, N ... 2 N - 1 of stealing, over all servers: the
    distribution is softmax(`game.logit_scale` x action); its own place means to keep the task, to ask nobody.
    Values outside [-1, 1] are clipped, NaN is an error. A discrete action (k, v) favours server k: it gets
    the share `game.favour` of the tasks, the rest stays; all requests for work go to v. Its own number means
    to keep all, to ask nobody.

    **Reward.** u_i = -I(x) - C_i, with I = 1/(N-1) sum_jk |x_j - x_k| of the true loads at the end of the
    window, and C_i = `game.migration_cost` x migrations + `game.steal_cost` x requests of the window;
    `reward="phi"` pays everyone phi = -I - sum_i C_i. At the stage phi is an exact potential of u.

    **Infos**: `t_s` [s], `seed` of the episode, `loads_us` (N,) true loads [us], `imbalance_us` I of them
    [us], and of the episode so far `migrations`, `steals`, `tasks` measured and their `latency_mean_us` [us].

    **Seeds.** `reset(seed=s)` plays the arrivals and service times of seed s, those of
    `steelyard simulate`. A later `reset()` draws the next episode from a stream of training seeds that
    belongs to s and never meets a seed below 2^63.

    Arguments: `scenario` (a name, a TOML file or a RackScenario), `overrides` (such as
    `["workload.load=0.9"]`), `reward`, `discrete`, `render_mode` (`human` prints, `ansi` returns text,
    `rgb_array` an image).
    """

    metadata: ClassVar[dict[str, Any]] = {
        "name": "rack_v0",
        "render_modes": list(RENDER_MODES),
        "render_fps": 10,
        "is_parallelizable": True,
    }

    def __init__(
        self,
        scenario: RackScenario | str = "rack-hom-8x8",
        *,
        overrides: Sequence[str] = (),
        reward: str | None = None,
        discrete: bool = False,
        render_mode: str | None = None,
    ):
        options: dict[str, Any] = {"overrides": overrides, "reward": reward, "discrete": discrete}
        EzPickle.__init__(self, scenario, render_mode=render_mode, **options)
        batch = RackBatch(scenario, 1, autoreset=False, **options)
        size = batch.num_servers
        self._face(
            batch,
            lambda: rack_observation_space(size),
            lambda: rack_action_space(size, discrete=discrete),
            rack_observation_space(size, size),
            render_mode,
        )

    def render(self) -> str | NDArray[np.uint8] | None:
        """The moment as `render_mode` says: text, an image (height, 480, 3) uint8, or printed text."""
        return render_rack(self._batch, self._steps, self.render_mode)

    def _infos(self) -> dict[str, dict[str, Any]]:
        info = rack_info(self._batch, 0) | {"t_s": self._steps * self._batch.window_s}
        return {agent: dict(info) for agent in self.possible_agents}


def rack_info(batch: RackBatch, world: int) -> dict[str, Any]:
    """Seed, true loads and running statistics of one world; what has no value yet is left out."""
    stats = {name: values[world].item() for name, values in batch.episode_stats().items()}
    known: dict[str, Any] = {name: value for name, value in stats.items() if not math.isnan(value)}
    return known | {"seed": batch.seeds[world], "loads_us": batch.expected_waits_us()[world]}


def render_rack(batch: RackBatch, steps: int, render_mode: str | None) -> str | NDArray[np.uint8] | None:
    """World 0 of a batch after some steps, as the mode says; raises UserError without a mode."""
    seen, waits_us = batch.buffers.observations[0], batch.expected_waits_us()[0]
    headline = f"{batch.scenario.name} at {1e6 * steps * batch.window_s:.0f} us"
    return show(
        render_mode, lambda: render_image(seen, waits_us), lambda: render_text(seen, waits_us, headline)
    )


def parallel_env(**kwargs: Any) -> RackParallelEnv:
    """The environment in which all agents act at once; arguments of RackParallelEnv."""
    return RackParallelEnv(**kwargs)


def raw_env(**kwargs: Any) -> AECEnv:
    """The turn-based form, without checks of the order of calls."""
    return parallel_to_aec(parallel_env(**kwargs))


def env(**kwargs: Any) -> AECEnv:
    """The turn-based form: agents act one after another, and the world moves when the last one has acted."""
    return OrderEnforcingWrapper(raw_env(**kwargs))
