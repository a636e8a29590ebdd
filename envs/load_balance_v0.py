"""The network load-balancing game, version 0, as a PettingZoo environment: `parallel_env`, `env` (AEC) and
`raw_env`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from gymnasium.utils import EzPickle
from numpy.typing import NDArray
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils import OrderEnforcingWrapper, parallel_to_aec

from steelyard.envs.batch import LoadBalanceBatch
from steelyard.envs.errors import UserError, bad_value, unknown
from steelyard.envs.render import render_image, render_text
from steelyard.envs.scenario import Scenario
from steelyard.envs.spaces import action_space, observation_space

RENDER_MODES = ("human", "ansi", "rgb_array")


class LoadBalanceParallelEnv(ParallelEnv, EzPickle):
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
        check_render_mode(render_mode)
        self.render_mode = render_mode
        self._batch = LoadBalanceBatch(scenario, 1, autoreset=False, **options)
        self.scenario = self._batch.scenario
        self.possible_agents = [f"lb_{agent}" for agent in range(self._batch.num_agents)]
        self.agents: list[str] = []
        self._steps = 0
        self.observation_spaces = {
            a: observation_space(self._batch.num_servers) for a in self.possible_agents
        }
        self.action_spaces = {
            a: action_space(self._batch.num_servers, discrete=discrete) for a in self.possible_agents
        }
        self.state_space = observation_space(self._batch.num_servers, self._batch.num_agents)

    def observation_space(self, agent: str) -> spaces.Space:
        """The observation space of an agent; always the same object."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Space:
        """The action space of an agent; always the same object."""
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, NDArray[np.float32]], dict[str, dict[str, Any]]]:
        """Starts an episode: of `seed`, or the next one of the stream. Returns observations and infos by
        agent.
        """
        del options
        self._batch.reset(seeds=None if seed is None else [seed])
        self.agents = list(self.possible_agents)
        self._steps = 0
        return self._observations(), self._infos()

    def step(self, actions: dict[str, Any]) -> tuple[dict, dict, dict, dict, dict]:
        """Plays one step with the actions (N,) of all agents.

        Returns observations, rewards, terminations, truncations and infos by agent. Raises UserError when an
        agent's action is missing, of the wrong shape or not a number. After truncation no agent is left and a
        step returns five empty dicts.
        """
        if not self.agents:
            return {}, {}, {}, {}, {}
        _, rewards, truncated = self._batch.step(self._joint(actions))
        self._steps += 1
        agents, over = self.agents, bool(truncated[0])
        paid = {agent: float(rewards[0, i]) for i, agent in enumerate(agents)}
        result = (
            self._observations(),
            paid,
            dict.fromkeys(agents, False),
            dict.fromkeys(agents, over),
            self._infos(),
        )
        if over:
            self.agents = []
        return result

    def state(self) -> NDArray[np.float32]:
        """What all agents see, end to end, (M * (12 N + 5),): a state for centralised training."""
        return self._batch.buffers.observations[0].reshape(-1).copy()

    def render(self) -> str | NDArray[np.uint8] | None:
        """The moment as `render_mode` says: text, an image (height, 480, 3) uint8, or printed text."""
        return render_moment(
            self._batch.buffers.observations[0], self._batch, self._time_s(), self.render_mode
        )

    def close(self) -> None:
        """Nothing is held that Python does not free."""

    def _joint(self, actions: dict[str, Any]) -> NDArray[Any]:
        for agent in actions:
            if agent not in self.agents:
                raise unknown("agent", agent, self.agents)
        rows = []
        for agent in self.agents:
            if agent not in actions:
                raise UserError(
                    f"action of {agent} is missing: must be an array of shape ({self._batch.num_servers},)"
                )
            row = np.asarray(actions[agent])
            if row.shape != (self._batch.num_servers,):
                allowed = f"of shape ({self._batch.num_servers},), one number for each server"
                raise bad_value(f"action of {agent}", f"an array of shape {row.shape}", allowed)
            rows.append(row)
        return np.stack(rows)[None]

    def _observations(self) -> dict[str, NDArray[np.float32]]:
        copied = self._batch.buffers.observations[0].copy()
        return {agent: copied[i] for i, agent in enumerate(self.possible_agents)}

    def _time_s(self) -> float:
        control, episode = self.scenario.control, self.scenario.episode
        return min(self._steps * control.step_s, episode.horizon_s)

    def _infos(self) -> dict[str, dict[str, Any]]:
        info = world_info(self._batch, 0)
        info["t_s"] = self._time_s()
        return {agent: dict(info) for agent in self.possible_agents}


def check_render_mode(render_mode: str | None) -> None:
    """Raises UserError unless it is None or a known mode."""
    if render_mode is not None and render_mode not in RENDER_MODES:
        raise unknown("render_mode", render_mode, RENDER_MODES)


def world_info(batch: LoadBalanceBatch, world: int) -> dict[str, Any]:
    """Seed and running statistics of one world of a batch, as plain numbers; what has no value yet is left
    out.
    """
    stats = {name: values[world].item() for name, values in batch.episode_stats().items()}
    known: dict[str, Any] = {name: value for name, value in stats.items() if not math.isnan(value)}
    return known | {"seed": batch.seeds[world]}


def render_moment(
    observations: NDArray[np.float32], batch: LoadBalanceBatch, t_s: float, render_mode: str | None
) -> str | NDArray[np.uint8] | None:
    """One world's observations (M, D) as the mode says; raises UserError without a mode."""
    if render_mode is None:
        raise UserError(
            f"render() without render_mode: must be one of {', '.join(RENDER_MODES)} when the env is made"
        )
    if render_mode == "rgb_array":
        return render_image(observations, batch.num_servers)
    text = render_text(observations, batch.num_servers, f"{batch.scenario.name} at {t_s:.2f} s")
    if render_mode == "ansi":
        return text
    print(text, end="")
    return None


def parallel_env(**kwargs: Any) -> LoadBalanceParallelEnv:
    """The environment in which all agents act at once; arguments of LoadBalanceParallelEnv."""
    return LoadBalanceParallelEnv(**kwargs)


def raw_env(**kwargs: Any) -> AECEnv:
    """The turn-based form, without checks of the order of calls."""
    return parallel_to_aec(parallel_env(**kwargs))


def env(**kwargs: Any) -> AECEnv:
    """The turn-based form: agents act one after another, and the world moves when the last one has acted."""
    return OrderEnforcingWrapper(raw_env(**kwargs))
