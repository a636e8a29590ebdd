"""RLlib's env runner on the native batch: B worlds in lock step, whole episodes, arrays instead of steps.

RLlib's own multi-agent runner handles every agent of every world of every step as Python objects, about a
millisecond each; here a step of all worlds costs one forward pass per policy.
"""

from __future__ import annotations

import time
import uuid
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from ray.rllib.core.columns import Columns
from ray.rllib.env import INPUT_ENV_SINGLE_SPACES, INPUT_ENV_SPACES
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.env.utils.infinite_lookback_buffer import InfiniteLookbackBuffer
from ray.rllib.utils.metrics import (
    NUM_AGENT_STEPS_SAMPLED,
    NUM_AGENT_STEPS_SAMPLED_LIFETIME,
    NUM_ENV_STEPS_SAMPLED,
    NUM_ENV_STEPS_SAMPLED_LIFETIME,
    NUM_EPISODES,
    NUM_EPISODES_LIFETIME,
    NUM_MODULE_STEPS_SAMPLED,
    NUM_MODULE_STEPS_SAMPLED_LIFETIME,
)

from steelyard import native
from steelyard.agents.layout import DISCRETE_ACTIONS
from steelyard.trainers.rllib.game import OWN_KEY, STATE_KEY, Game
from steelyard.trainers.rllib.modules import STATE

GAME = "game"
"""Key of the Game in env_config."""


class BatchEnvRunner(MultiAgentEnvRunner):
    """Plays whole episodes of `num_envs_per_env_runner` worlds at once; see the module."""

    def __init__(self, *, config: Any, **kwargs: Any) -> None:
        torch.set_num_threads(1)
        self.game: Game = config.env_config[GAME]
        self._first, self._round = 0, 0
        self._records: list[dict[str, Any]] = []
        self._cpu_s = time.process_time()
        super().__init__(config=config, **kwargs)
        # A stream of its own for every runner, and another one after a resume.
        self._noise = torch.Generator().manual_seed(self._noise_seed())

    def make_env(self) -> None:
        """The worlds; `env` only tells their spaces."""
        self.num_envs = self.config.num_envs_per_env_runner
        self._batch = self.game.batch(self.num_envs)
        one = [gym.spaces.Dict(dict.fromkeys(self.game.agents, space)) for space in self._spaces()]
        env = SimpleNamespace(num_envs=self.num_envs, close=lambda: None, metadata={})
        env.observation_space = env.single_observation_space = one[0]
        env.action_space = env.single_action_space = one[1]
        env.unwrapped = env
        self.env = env
        self._needs_initial_reset = False

    def get_spaces(self) -> dict[str, Any]:
        """By policy, and of the environment."""
        spaces = {policy: self._spaces() for policy in self.game.policies}
        whole = tuple(gym.spaces.Dict(dict.fromkeys(self.game.agents, each)) for each in self._spaces())
        return {INPUT_ENV_SPACES: whole, INPUT_ENV_SINGLE_SPACES: whole, **spaces}

    def _spaces(self) -> tuple[gym.Space, gym.Space]:
        return self.game.observation_space, self.game.action_space

    def start_at(self, episode: int) -> None:
        """Training episodes are counted from `episode`: the next ones have the seeds that follow."""
        self._first, self._round = episode, 0
        self._noise.manual_seed(self._noise_seed())

    def _noise_seed(self) -> int:
        index = self.worker_index or 0
        return int(np.random.SeedSequence((self.game.seed, self._first, index)).generate_state(1)[0])

    def take_records(self) -> list[dict[str, Any]]:
        """What was played since the last call, one entry per round: plain arrays."""
        taken, self._records = self._records, []
        return taken

    def _sample(self, **how: Any) -> list[MultiAgentEpisode]:
        """One episode of every world, whatever number RLlib asks for; it asks until it has enough."""
        seeds, tape = self._seeds(), _Tape()
        seen = self._batch.reset(seeds=seeds).copy()
        states = {agent: self._start(self.game.policy_of(agent)) for agent in self.game.agents}
        over = False
        while not over:
            tape.obs.append(seen)
            joint = self._act(seen, states, how.get("explore", True), tape)
            buffer, reward, truncated = self._batch.step(joint)
            seen, over = buffer.copy(), bool(truncated.all())
            tape.rewards.append(reward.copy())
        tape.obs.append(seen)
        self._round += 1
        self._remember(seeds, tape)
        return self._episodes(tape)

    def _seeds(self) -> list[int]:
        runners = max(1, self.config.num_env_runners)
        turn = self._round * runners + max(0, (self.worker_index or 1) - 1)
        first = self._first + turn * self.num_envs
        return [native.train_seed(self.game.seed, first + index) for index in range(self.num_envs)]

    def _start(self, policy: str) -> torch.Tensor | None:
        state = self.module[policy].get_initial_state()
        return state[STATE].expand(self.num_envs, -1, -1) if state else None

    @torch.no_grad()
    def _act(
        self, seen: NDArray[np.float32], states: dict[str, Any], explore: bool, tape: _Tape
    ) -> NDArray[Any]:
        """Actions (B, M, N) of all agents; what learning needs of them goes to the tape."""
        joint = []
        for index, agent in enumerate(self.game.agents):
            module = self.module[self.game.policy_of(agent)]
            obs = torch.from_numpy(self._view(seen, index))
            state = states[agent]
            batch: dict[str, Any] = {
                Columns.OBS: {OWN_KEY: obs} if module.model_config["sees_state"] else obs
            }
            if state is not None:
                batch = {Columns.OBS: _with_time(batch[Columns.OBS]), Columns.STATE_IN: {STATE: state}}
            out = module.forward_exploration(batch)
            logits = out[Columns.ACTION_DIST_INPUTS]
            if state is not None:
                states[agent], logits = out[Columns.STATE_OUT][STATE], logits[:, 0]
            action, chance = module.draw(logits, self._noise)
            joint.append(module.to_env(action) if explore else module.likeliest(logits))
            columns = {Columns.ACTIONS: action, Columns.ACTION_LOGP: chance}
            columns[Columns.ACTION_DIST_INPUTS] = logits
            if state is not None:
                columns[Columns.STATE_OUT] = states[agent]
            tape.add(agent, columns)
        acted = np.stack(joint, 1).reshape(self.num_envs, self._batch.num_agents, -1)
        tape.joint.append(acted)
        return acted

    def _view(self, seen: NDArray[np.float32], index: int) -> NDArray[np.float32]:
        """One agent's observation out of (..., M, D)."""
        if self.game.central:
            return seen.reshape(*seen.shape[:-2], -1)
        return np.ascontiguousarray(seen[..., index, :])

    def _remember(self, seeds: list[int], tape: _Tape) -> None:
        """Records of the round, and RLlib's own counters."""
        joint = np.stack(tape.joint, 1)
        if self.game.settings.discrete:
            joint = np.array(DISCRETE_ACTIONS, np.float32)[joint]
        spent, self._cpu_s = time.process_time() - self._cpu_s, time.process_time()
        self._records.append(
            {
                "seeds": seeds,
                "stats": {name: values.copy() for name, values in self._batch.episode_stats().items()},
                "returns": np.stack(tape.rewards, 1).sum(1),
                "weights": np.exp2(2 * joint.mean((1, 2))),
                "cpu_s": spent if self.worker_index else 0.0,  # runner 0 lives in the main process
            }
        )
        steps, agents = self.num_envs * len(tape.rewards), self.game.agents
        self._count(NUM_ENV_STEPS_SAMPLED, NUM_ENV_STEPS_SAMPLED_LIFETIME, (), steps)
        self._count(NUM_EPISODES, NUM_EPISODES_LIFETIME, (), self.num_envs)
        for agent in agents:
            self._count(NUM_AGENT_STEPS_SAMPLED, NUM_AGENT_STEPS_SAMPLED_LIFETIME, (agent,), steps)
        for policy in self.game.policies:
            total = steps * sum(self.game.policy_of(agent) == policy for agent in agents)
            self._count(NUM_MODULE_STEPS_SAMPLED, NUM_MODULE_STEPS_SAMPLED_LIFETIME, (policy,), total)
        self.num_env_steps_sampled_lifetime += steps

    def _count(self, now: str, ever: str, key: tuple[str, ...], number: int) -> None:
        self.metrics.log_value((now, *key), number, reduce="sum")
        self.metrics.log_value((ever, *key), number, reduce="lifetime_sum")

    def _episodes(self, tape: _Tape) -> list[MultiAgentEpisode]:
        obs, paid = np.stack(tape.obs, 1), self.game.paid(np.stack(tape.rewards, 1))
        columns = {agent: tape.columns(agent) for agent in self.game.agents}
        return [self._episode(world, obs, paid, columns) for world in range(self.num_envs)]

    def _episode(
        self, world: int, obs: NDArray[Any], paid: NDArray[Any], columns: dict[str, dict[str, NDArray[Any]]]
    ) -> MultiAgentEpisode:
        """RLlib's episode around the arrays of one world."""
        name = uuid.uuid4().hex
        whole = MultiAgentEpisode(
            id_=name, agent_to_module_mapping_fn=self.config.policy_mapping_fn, len_lookback_buffer=0
        )
        state = obs[world].reshape(len(obs[world]), -1)
        for index, agent in enumerate(self.game.agents):
            mine: Any = self._view(obs[world], index)
            if self.game.settings.sees_state:
                mine = {OWN_KEY: mine, STATE_KEY: state}
            extra = {key: _buffer(_of_world(values, world)) for key, values in columns[agent].items()}
            whole.agent_episodes[agent] = SingleAgentEpisode(
                observations=_buffer(mine),
                actions=extra.pop(Columns.ACTIONS),
                rewards=_buffer(paid[world, :, index]),
                extra_model_outputs=extra,
                truncated=True,
                len_lookback_buffer=0,
                agent_id=agent,
                module_id=self.game.policy_of(agent),
                multi_agent_episode_id=name,
            )
        whole.env_t, whole.is_truncated = len(obs[world]) - 1, True
        return whole


class _Tape:
    """What a round leaves: lists over time, stacked at the end."""

    def __init__(self) -> None:
        self.obs: list[NDArray[np.float32]] = []  # (B, M, D) each
        self.rewards: list[NDArray[np.float32]] = []  # (B, M)
        self.joint: list[NDArray[Any]] = []  # (B, M, N)
        self._columns: dict[str, dict[str, list[torch.Tensor]]] = {}

    def add(self, agent: str, columns: dict[str, torch.Tensor]) -> None:
        """One step's columns of an agent, (B, ...) each."""
        mine = self._columns.setdefault(agent, {key: [] for key in columns})
        for key, value in columns.items():
            mine[key].append(value)

    def columns(self, agent: str) -> dict[str, Any]:
        """Columns of an agent, (B, T, ...) each; the recurrent state under its key."""
        stacked = {key: torch.stack(values, 1).numpy() for key, values in self._columns[agent].items()}
        state = stacked.pop(Columns.STATE_OUT, None)
        return stacked if state is None else stacked | {Columns.STATE_OUT: {STATE: state}}


def _with_time(obs: Any) -> Any:
    return {key: value[:, None] for key, value in obs.items()} if isinstance(obs, dict) else obs[:, None]


def _of_world(values: Any, world: int) -> Any:
    return {key: each[world] for key, each in values.items()} if isinstance(values, dict) else values[world]


def _buffer(data: Any) -> InfiniteLookbackBuffer:
    """RLlib's buffer around arrays (T, ...) as they are."""
    buffer = InfiniteLookbackBuffer()
    buffer.data, buffer.lookback, buffer.finalized = data, 0, True
    return buffer
