"""What the PettingZoo faces of a batch share: one world stepped by all agents at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from pettingzoo import ParallelEnv

from steelyard.envs.errors import UserError, bad_value, unknown
from steelyard.envs.native_batch import NativeBatch
from steelyard.envs.render import render_image, render_text
from steelyard.envs.scenario import Scenario
from steelyard.envs.spaces import action_space, observation_space

RENDER_MODES = ("human", "ansi", "rgb_array")


class BatchParallelEnv(ParallelEnv):
    """A batch of one world as a parallel environment: by default of the load-balancing game."""

    scenario: Any
    _batch: Any

    def _face(
        self,
        batch: Any,
        observed: Callable[[], spaces.Space],
        acted: Callable[[], spaces.Space],
        state: spaces.Space,
        render_mode: str | None,
    ) -> None:
        """Be the face of `batch`, a NativeBatch; `observed` and `acted` make the spaces of one agent.

        UserError for an unknown render mode.
        """
        check_render_mode(render_mode)
        self.render_mode = render_mode
        self._batch, self.scenario = batch, batch.scenario
        self.possible_agents = list(batch.agents)
        self.agents: list[str] = []
        self._steps = 0
        self.observation_spaces = {agent: observed() for agent in self.possible_agents}
        self.action_spaces = {agent: acted() for agent in self.possible_agents}
        self.state_space = state

    def _face_balancers(self, batch: NativeBatch, discrete: bool, render_mode: str | None) -> None:
        """Be the face of a batch of the load-balancing game, simulated or live."""
        servers = batch.num_servers
        self._face(
            batch,
            lambda: observation_space(servers),
            lambda: action_space(servers, discrete=discrete),
            observation_space(servers, batch.num_agents),
            render_mode,
        )

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
        """Plays one step with the actions of all agents.

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
        """What all agents see, end to end: a state for centralised training."""
        return self._batch.buffers.observations[0].reshape(-1).copy()

    def render(self) -> str | NDArray[np.uint8] | None:
        """The moment as `render_mode` says: text, an image (height, 480, 3) uint8, or printed text."""
        seen = self._batch.buffers.observations[0]
        return render_moment(seen, self.scenario, self._time_s(), self.render_mode)

    def close(self) -> None:
        """Nothing is held that Python does not free."""

    def _joint(self, actions: dict[str, Any]) -> NDArray[Any]:
        shape = self._batch.action_shape[2:]
        for agent in actions:
            if agent not in self.agents:
                raise unknown("agent", agent, self.agents)
        rows = []
        for agent in self.agents:
            if agent not in actions:
                raise UserError(f"action of {agent} is missing: must be an array of shape {shape}")
            row = np.asarray(actions[agent])
            if row.shape != shape:
                raise bad_value(f"action of {agent}", f"an array of shape {row.shape}", f"of shape {shape}")
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


def world_info(batch: NativeBatch, world: int) -> dict[str, Any]:
    """Seed and running statistics of one world of a batch, as plain numbers; what has no value yet is left
    out.
    """
    stats = {name: values[world].item() for name, values in batch.episode_stats().items()}
    known: dict[str, Any] = {name: value for name, value in stats.items() if not math.isnan(value)}
    return known | {"seed": batch.seeds[world]}


def render_moment(
    observations: NDArray[np.float32], scenario: Scenario, t_s: float, render_mode: str | None
) -> str | NDArray[np.uint8] | None:
    """One world's observations (M, D) as the mode says; raises UserError without a mode."""
    return show(
        render_mode,
        lambda: render_image(observations, scenario.num_servers),
        lambda: render_text(observations, scenario.num_servers, f"{scenario.name} at {t_s:.2f} s"),
    )


def show(
    render_mode: str | None, image: Callable[[], NDArray[np.uint8]], text: Callable[[], str]
) -> str | NDArray[np.uint8] | None:
    """A moment as the mode says; raises UserError without a mode."""
    if render_mode is None:
        raise UserError(
            f"render() without render_mode: must be one of {', '.join(RENDER_MODES)} when the env is made"
        )
    if render_mode == "rgb_array":
        return image()
    if render_mode == "ansi":
        return text()
    print(text(), end="")
    return None
