"""What every batch of native worlds is for Python: buffers written in place, seeds, episodes, autoreset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.envs.errors import UserError, bad_value, shown

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


def positive(name: str, value: object) -> int:
    """Checks a count: a whole number from 1 to 1000000."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not 1 <= value <= 1_000_000:
        raise bad_value(name, value, "a whole number from 1 to 1000000")
    return int(value)


class NativeBatch:
    """`num_envs` worlds of one scenario in lock step. A game says what its actions mean in `_take_actions`.

    Seeds: world i's first episode has the seed that `reset` gave it, s; its e-th later episode has
    `native.train_seed(s, e)`, which never is an evaluation seed. So what a world goes through depends on its
    seed and actions alone, not on the batch or the threads.

    Autoreset (`autoreset=True`) follows Gymnasium's NEXT_STEP: the step that ends an episode returns its last
    observation with truncated = True; the next step ignores that world's action and returns the first
    observation of its next episode with reward 0.
    """

    _place = "server"
    """What an action has one number for, in errors."""

    def __init__(
        self,
        native_batch: Any,
        agents: Sequence[str],
        sizes: tuple[int, int, int],
        action_shape: tuple[int, ...],
        joint: NDArray[np.float32],
        buffers: Buffers | None,
        autoreset: bool,
    ):
        """sizes: worlds, servers, numbers of an observation. joint: what `native_batch.step` takes."""
        self._native, self.agents, self.autoreset = native_batch, list(agents), autoreset
        self.num_envs, self.num_servers, self.obs_dim = sizes
        self.num_agents, self.action_shape, self._joint = len(self.agents), action_shape, joint
        shape = (self.num_envs, self.num_agents, self.obs_dim)
        self.buffers = buffers if buffers is not None else Buffers.allocate(*shape)
        self.buffers.check(*shape)
        self._seeds = np.zeros(self.num_envs, dtype=np.uint64)
        self._first_seeds = np.zeros(self.num_envs, dtype=np.uint64)
        self._episodes = np.zeros(self.num_envs, dtype=np.int64)
        self._started = False
        flags = self.buffers.truncated.view(np.uint8)
        self._native.bind(self.buffers.observations, self.buffers.rewards, flags)

    def episode_stats(self) -> dict[str, NDArray[Any]]:
        """Statistics of each world's episode so far, each (B,)."""
        return self._native.episode_stats()

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

        actions: (B, M, ...) as the class says. Returns observations (B, M, D), rewards (B, M) and truncated
        (B,), all in place. Raises UserError for a wrong shape, NaN, infinity or an index out of range;
        nothing has moved then.
        """
        if not self._started:
            raise UserError("step() before reset(): call reset() first")
        self._take_actions(actions)
        over = self.buffers.truncated.copy()
        if not over.any():
            self._native.step(self._joint)
        elif not self.autoreset:
            world = int(np.flatnonzero(over)[0])
            raise UserError(
                f"step() after the end of the episode of world {world}: call reset_worlds() first"
            )
        else:
            if not over.all():
                self._native.step(self._joint, ~over)
            self.reset_worlds(over)
        return self.buffers.observations, self.buffers.rewards, self.buffers.truncated

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
        """Fills `_joint` with what the native batch takes. Raises UserError for a bad action."""
        raise NotImplementedError

    def _numbers(self, actions: ArrayLike, choices: int = 0) -> NDArray[Any]:
        """The actions as an array of `action_shape`: finite numbers, or whole ones below `choices`."""
        given = np.asarray(actions)
        if given.shape != self.action_shape:
            raise bad_value("actions", f"an array of shape {given.shape}", f"of shape {self.action_shape}")
        if choices:
            allowed = ", ".join(map(str, range(choices - 1))) + f" or {choices - 1}"
            if given.dtype.kind not in "iu":
                raise bad_value("actions", f"an array of {given.dtype}", f"whole numbers {allowed}")
            self._refuse((given < 0) | (given >= choices), given, allowed)
            return given
        if given.dtype.kind not in "fiu":
            raise bad_value("actions", f"an array of {given.dtype}", "numbers from -1 to 1")
        finite = np.isfinite(given)
        if not finite.all():
            self._refuse(~finite, given, "a number from -1 to 1")
        return given

    def _refuse(self, wrong: NDArray[np.bool_], given: NDArray[Any], allowed: str) -> None:
        if wrong.any():
            world, agent, place = (int(index) for index in np.argwhere(wrong)[0])
            value = shown(given[world, agent, place].item())
            who = f"agent {self.agents[agent]}, {self._place} {place}"
            raise UserError(f"action of world {world}, {who} = {value}: must be {allowed}")
