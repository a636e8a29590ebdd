"""B worlds of the load-balancing game, stepped by native threads that write into the caller's arrays.

This is the game itself; the PettingZoo, Gymnasium and TorchRL environments are thin faces of it.

    >>> import numpy as np
    >>> batch = LoadBalanceBatch("cluster-a-cpu", num_envs=4)
    >>> batch.reset(seed=1).shape
    (4, 2, 101)
    >>> observations, rewards, truncated = batch.step(np.zeros((4, 2, 8), dtype=np.float32))

Buffers have the layout (num_envs, num_agents, features), C order. They are bound once and written in place by
every `reset` and `step`: what these return are the buffers themselves, so copy what must outlive the next
call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.envs.errors import UserError, bad_value, shown
from steelyard.envs.rewards import check_reward
from steelyard.envs.scenario import Scenario
from steelyard.envs.schema import observation_size
from steelyard.envs.spaces import DISCRETE_ACTIONS

_MAX_SEED = 1 << 64


@dataclass(frozen=True)
class Buffers:
    """Arrays that the simulator writes: observations (B, M, D) float32, rewards (B, M) float32, truncated
    (B,) bool.
    """

    observations: NDArray[np.float32]
    rewards: NDArray[np.float32]
    truncated: NDArray[np.bool_]

    @staticmethod
    def allocate(num_envs: int, num_agents: int, obs_dim: int) -> Buffers:
        """New buffers of zeros."""
        return Buffers(
            np.zeros((num_envs, num_agents, obs_dim), dtype=np.float32),
            np.zeros((num_envs, num_agents), dtype=np.float32),
            np.zeros(num_envs, dtype=np.bool_),
        )

    def check(self, num_envs: int, num_agents: int, obs_dim: int) -> None:
        """Raises UserError unless every array can be written in place with this layout."""
        wanted = Buffers.allocate(num_envs, num_agents, obs_dim)
        for name in ("observations", "rewards", "truncated"):
            array, model = getattr(self, name), getattr(wanted, name)
            fits = isinstance(array, np.ndarray) and array.shape == model.shape and array.dtype == model.dtype
            if not fits or not (array.flags.c_contiguous and array.flags.writeable and array.flags.aligned):
                given = (
                    f"{array.shape} {array.dtype}" if isinstance(array, np.ndarray) else type(array).__name__
                )
                allowed = f"a writeable array of shape {model.shape}, {model.dtype}, in C order"
                raise bad_value(f"buffers.{name}", given, allowed)


def world_seed(seed: object, key: str = "seed") -> int:
    """Checks a seed: a whole number from 0 to 2^64 - 1."""
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or not 0 <= int(seed) < _MAX_SEED:
        raise bad_value(key, seed, "a whole number from 0 to 2^64 - 1")
    return int(seed)


def _positive(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not 1 <= value <= 1_000_000:
        raise bad_value(name, value, "a whole number from 1 to 1000000")
    return int(value)


class LoadBalanceBatch:
    """`num_envs` worlds of one scenario in lock step.

    Seeds: world i's first episode has the seed that `reset` gave it, s; its e-th later episode has
    `native.train_seed(s, e)`, which never is an evaluation seed. So what a world goes through depends on its
    seed and actions alone, not on the batch or the threads.

    Autoreset (`autoreset=True`) follows Gymnasium's NEXT_STEP: the step that ends an episode returns its last
    observation with truncated = True; the next step ignores that world's action and returns the first
    observation of its next episode with reward 0.
    """

    def __init__(
        self,
        scenario: Scenario | str,
        num_envs: int,
        *,
        overrides: Sequence[str] = (),
        threads: int = 1,
        reward: str | None = None,
        measure: str | None = None,
        discrete: bool = False,
        autoreset: bool = True,
        buffers: Buffers | None = None,
    ):
        """Makes the worlds; `reward` and `measure` replace the scenario's. Raises UserError for bad input."""
        from steelyard import native

        self.scenario = load_scenario(scenario, overrides)
        self.reward = reward if reward is not None else self.scenario.reward.kind
        self.measure = measure if measure is not None else self.scenario.reward.measure
        check_reward(self.reward, self.measure)
        self.num_envs, self.discrete, self.autoreset = _positive("num_envs", num_envs), discrete, autoreset
        self.num_agents, self.num_servers = self.scenario.num_agents, self.scenario.num_servers
        self.obs_dim = observation_size(self.num_servers)
        shape = (self.num_envs, self.num_agents, self.obs_dim)
        self.buffers = buffers if buffers is not None else Buffers.allocate(*shape)
        self.buffers.check(*shape)
        self._actions = np.zeros((self.num_envs, self.num_agents, self.num_servers), dtype=np.float32)
        self._seeds = np.zeros(self.num_envs, dtype=np.uint64)
        self._first_seeds = np.zeros(self.num_envs, dtype=np.uint64)
        self._episodes = np.zeros(self.num_envs, dtype=np.int64)
        self._started = False
        self._native = native.ClusterBatch(
            self.scenario.to_native(),
            self.num_envs,
            _positive("threads", threads),
            self.reward,
            self.measure,
        )
        flags = self.buffers.truncated.view(np.uint8)
        self._native.bind(self.buffers.observations, self.buffers.rewards, flags)

    @property
    def seeds(self) -> NDArray[np.uint64]:
        """Seed of each world's present episode, (B,), a copy."""
        return self._seeds.copy()

    def reset(
        self, seed: int | None = None, *, seeds: ArrayLike | Sequence[int] | None = None
    ) -> NDArray[np.float32]:
        """Starts an episode in every world and returns the observations (B, M, D), in place.

        `seeds` (B,) gives each world its own; `seed` is a run's: world i gets `native.train_seed(seed, i)`.
        With neither, every world goes on to its next episode (a batch that never was reset draws a run's seed
        from the operating system).
        """
        if seed is not None and seeds is not None:
            raise UserError("seed and seeds are both given; must be one of them")
        if seeds is not None:
            self._begin(self._checked_seeds(seeds))
        elif seed is not None or not self._started:
            self._begin(self._run_seeds(seed))
        else:
            self._next_seeds(np.ones(self.num_envs, dtype=np.bool_))
        self._reset_all()
        return self.buffers.observations

    def reset_worlds(self, which: ArrayLike) -> NDArray[np.float32]:
        """Starts the next episode of the worlds in the mask `which` (B,) bool; returns all observations, in
        place.
        """
        mask = np.asarray(which)
        if mask.shape != (self.num_envs,) or mask.dtype != np.bool_:
            raise bad_value(
                "which", f"{mask.shape} {mask.dtype}", f"a mask of shape ({self.num_envs},), bool"
            )
        if not self._started:
            return self.reset()
        self._next_seeds(mask)
        if mask.all():
            self._reset_all()
        else:
            for world in np.flatnonzero(mask):
                self._native.reset_world(int(world), int(self._seeds[world]))
        return self.buffers.observations

    def step(self, actions: ArrayLike) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.bool_]]:
        """Plays one step in every world.

        actions: (B, M, N), float in [-1, 1] (clipped) or, if discrete, whole numbers 0, 1, 2. Returns
        observations (B, M, D), rewards (B, M) and truncated (B,), all in place. Raises UserError for a wrong
        shape, NaN, infinity or an index out of range; nothing has moved then.
        """
        if not self._started:
            raise UserError("step() before reset(): call reset() first")
        self._take_actions(actions)
        over = self.buffers.truncated.copy()
        if not over.any():
            self._native.step(self._actions)
        elif not self.autoreset:
            world = int(np.flatnonzero(over)[0])
            raise UserError(
                f"step() after the end of the episode of world {world}: call reset_worlds() first"
            )
        else:
            if not over.all():
                self._native.step(self._actions, ~over)
            self.reset_worlds(over)
        return self.buffers.observations, self.buffers.rewards, self.buffers.truncated

    def episode_stats(self) -> dict[str, NDArray[Any]]:
        """Statistics of the flows that have completed so far in each world's episode, each (B,).

        sojourn_mean_s [s] (NaN as long as none has), flows, rejected (counted in flows), jain_mean of the
        servers' loads at the steps.
        """
        return self._native.episode_stats()

    def remaining_time(self) -> NDArray[np.float64]:
        """True remaining time of every server [s], all flows together, (B, N): for a trainer in the
        simulator; no balancer sees it.
        """
        return self._native.remaining_time()

    def _run_seeds(self, seed: int | None) -> NDArray[np.uint64]:
        from steelyard import native

        run = int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else world_seed(seed)
        return np.array([native.train_seed(run, world) for world in range(self.num_envs)], dtype=np.uint64)

    def _checked_seeds(self, seeds: ArrayLike | Sequence[int]) -> NDArray[np.uint64]:
        listed = list(seeds) if isinstance(seeds, (list, tuple)) else list(np.asarray(seeds).ravel())
        if len(listed) != self.num_envs:
            raise bad_value("seeds", f"{len(listed)} seeds", f"{self.num_envs} seeds, one for each world")
        checked = [world_seed(seed, f"seeds.{world}") for world, seed in enumerate(listed)]
        return np.array(checked, dtype=np.uint64)

    def _begin(self, seeds: NDArray[np.uint64]) -> None:
        self._first_seeds[:] = seeds
        self._seeds[:] = seeds
        self._episodes[:] = 0
        self._started = True

    def _next_seeds(self, mask: NDArray[np.bool_]) -> None:
        from steelyard import native

        self._episodes[mask] += 1
        for world in np.flatnonzero(mask):
            self._seeds[world] = native.train_seed(int(self._first_seeds[world]), int(self._episodes[world]))

    def _reset_all(self) -> None:
        self._native.reset(self._seeds)

    def _take_actions(self, actions: ArrayLike) -> None:
        given = np.asarray(actions)
        if given.shape != self._actions.shape:
            raise bad_value("actions", f"an array of shape {given.shape}", f"of shape {self._actions.shape}")
        if self.discrete:
            if given.dtype.kind not in "iu":
                raise bad_value("actions", f"an array of {given.dtype}", "whole numbers 0, 1 or 2")
            self._refuse((given < 0) | (given >= len(DISCRETE_ACTIONS)), given, "0, 1 or 2")
            np.take(DISCRETE_ACTIONS, given, out=self._actions)
            return
        if given.dtype.kind not in "fiu":
            raise bad_value("actions", f"an array of {given.dtype}", "numbers from -1 to 1")
        finite = np.isfinite(given)
        if not finite.all():
            self._refuse(~finite, given, "a number from -1 to 1")
        np.clip(given, -1.0, 1.0, out=self._actions, casting="same_kind")

    def _refuse(self, wrong: NDArray[np.bool_], given: NDArray[Any], allowed: str) -> None:
        if wrong.any():
            world, agent, server = (int(index) for index in np.argwhere(wrong)[0])
            value = shown(given[world, agent, server].item())
            raise UserError(
                f"action of world {world}, agent lb_{agent}, server {server} = {value}: must be {allowed}"
            )


def load_scenario(scenario: Scenario | str, overrides: Sequence[str] = ()) -> Scenario:
    """A scenario from itself, its name or its file, with overrides. Raises UserError."""
    if isinstance(scenario, Scenario):
        return scenario.with_overrides(overrides) if overrides else scenario
    return Scenario.load(scenario, overrides)
