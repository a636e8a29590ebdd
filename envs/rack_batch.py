"""B racks of the game `rack_v0`, stepped by native threads that write into the caller's arrays.

    >>> import numpy as np
    >>> batch = RackBatch("rack-hom-8x8", num_envs=4)
    >>> batch.reset(seed=1).shape
    (4, 8, 17)
    >>> observations, rewards, truncated = batch.step(np.zeros((4, 8, 16), dtype=np.float32))

Buffers have the layout (num_envs, num_servers, features), C order. They are bound once and written in place
by every `reset` and `step`: copy what must outlive the next call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.envs.errors import UserError, bad_value, unknown
from steelyard.envs.native_batch import Buffers, NativeBatch, positive
from steelyard.envs.rack_scenario import RackScenario
from steelyard.envs.rack_schema import rack_observation_size
from steelyard.envs.scenario import Scenario
from steelyard.envs.scenario_file import CLUSTER, RACK, refuse_world

REWARDS = ("payoff", "phi")


class RackBatch(NativeBatch):
    """`num_envs` racks in lock step, one window (broadcast period) a step, the servers as agents.

    Actions: (B, N, 2 N) logits in [-1, 1] (clipped), times `game.logit_scale`, of migration, then stealing;
    if discrete (B, N, 2) servers to favour. NativeBatch tells of seeds, `reset`, `step` and autoreset.
    """

    _place = "number"

    def __init__(
        self,
        scenario: RackScenario | str,
        num_envs: int,
        *,
        overrides: Sequence[str] = (),
        threads: int = 1,
        reward: str | None = None,
        discrete: bool = False,
        autoreset: bool = True,
        buffers: Buffers | None = None,
    ):
        """Makes the racks; `reward` replaces the scenario's. Raises UserError for bad input."""
        self.scenario = load_rack(scenario, overrides)
        game = self.scenario.game
        self.reward = reward if reward is not None else game.reward
        if self.reward not in REWARDS:
            raise unknown("game.reward", self.reward, REWARDS)
        if self.scenario.rack.dispatchers:
            raise bad_value("rack.dispatchers", self.scenario.rack.dispatchers, "0: the servers are agents")
        self.discrete = discrete
        worlds, servers = positive("num_envs", num_envs), self.scenario.num_servers
        self._weights = np.zeros((worlds, 2, servers, servers), dtype=np.float32)
        super().__init__(
            self._make(worlds, positive("threads", threads)),
            [f"server_{server}" for server in range(servers)],
            (worlds, servers, rack_observation_size(servers)),
            (worlds, servers, 2 if discrete else 2 * servers),
            self._weights,
            buffers,
            autoreset,
        )

    def _make(self, worlds: int, threads: int) -> Any:
        from steelyard import native

        game = self.scenario.game
        try:
            return native.RackBatch(
                self.scenario.to_native(),
                worlds,
                threads,
                self.reward,
                game.migration_cost,
                game.steal_cost,
                game.load_unit_s,
            )
        except ValueError as error:
            raise UserError(str(error)) from None

    @property
    def window_s(self) -> float:
        """Length of a step [s]."""
        return self.scenario.loads.broadcast_period_s

    def episode_stats(self) -> dict[str, NDArray[Any]]:
        """Statistics of each world's episode so far, each (B,).

        latency_mean_us [us] (NaN as long as no task is measured) and tasks of those that are measured and
        done; migrations, steals; imbalance_us [us], I of the true loads at this moment.
        """
        return super().episode_stats()

    def expected_waits_us(self) -> NDArray[np.float32]:
        """True loads x_j = tasks / true service rate [us], (B, N)."""
        return self._native.expected_waits_us()

    def stats(self, world: int) -> dict[str, Any]:
        """Statistics of one world's episode so far with tails; the keys of native.simulate_rack."""
        return self._native.stats(world)

    def moves(self) -> NDArray[np.uint32]:
        """Of the last window, (B, 2, N, N): tasks that server i kept (own column) or gave to j, and its
        requests for work of j.
        """
        return self._native.moves()

    def copy_world(self, source: int, target: int) -> None:
        """The target becomes what the source is: the same state, seed and observations."""
        self._native.copy_world(source, target)
        for kept in (self._seeds, self._first_seeds, self._episodes):
            kept[target] = kept[source]

    def weights_of(self, actions: ArrayLike) -> NDArray[np.float32]:
        """Weights (B, 2, N, N) of the draws that actions stand for. Raises UserError for a bad action."""
        self._take_actions(actions)
        return self._weights.copy()

    def _take_actions(self, actions: ArrayLike) -> None:
        rows = self._weights.transpose(0, 2, 1, 3)  # (B, N, 2, N)
        if self.discrete:
            self._favour(self._numbers(actions, self.num_servers), rows)
            return
        given = np.clip(self._numbers(actions), -1.0, 1.0).reshape(rows.shape)
        np.exp(given * self.scenario.game.logit_scale, out=rows, casting="same_kind")

    def _favour(self, chosen: NDArray[Any], rows: NDArray[np.float32]) -> None:
        """Part of the tasks goes to the favoured server, the rest stays; steals are of the favoured alone."""
        share = self.scenario.game.favour
        own = np.eye(self.num_servers, dtype=np.float32)
        favoured = own[chosen]  # (B, N, 2, N)
        rows[:, :, 0] = share * favoured[:, :, 0] + (1 - share) * own
        rows[:, :, 1] = favoured[:, :, 1]


def load_rack(scenario: RackScenario | str, overrides: Sequence[str] = ()) -> RackScenario:
    """A rack scenario from itself, its name or its file, with overrides. Raises UserError."""
    if isinstance(scenario, Scenario):
        raise refuse_world(scenario.name, CLUSTER, RACK)
    if isinstance(scenario, RackScenario):
        return scenario.with_overrides(overrides) if overrides else scenario
    return RackScenario.load(scenario, overrides)
