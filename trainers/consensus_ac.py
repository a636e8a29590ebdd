"""Malcolm: linear actors that learn while the rack runs, critics that agree by consensus (seed 000, Alg. 1).

Every server is an agent with two linear softmax actors, one that migrates tasks and one that steals them, and
a critic of linear parameters whose mean over all servers is taken now and then. They learn natively inside
the simulation, window by window (native/core/malcolm.h); here episodes are dealt out and what was learned is
kept. Episodes follow one another: each goes on learning where the one before it stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard import native
from steelyard.envs.errors import UserError, unknown
from steelyard.envs.rack_scenario import RackScenario
from steelyard.trainers import malcolm_policy

VARIANTS = ("live", "myopic", "thesis", "code")
CURVE_POINTS = 20
"""Points of the learning curves per episode."""
_OWN = -1.0  # the variant's own value


@dataclass(frozen=True)
class Malcolm:
    """Hyper-parameters. A word that is empty, or a number below 0, is the variant's own."""

    variant: str = "live"
    """thesis: Algorithm 1; code: the authors' released code; myopic: the thesis's inputs, paid the fall of
    imbalance within a window, without a future, a linear critic as baseline; live: every draw from the state
    at its moment, own sends counted, paid the waiting (docs/malcolm.md compares)."""
    inputs: str = ""
    """What actors read: loads, ranks (and the loads), or waits (expected, and service times; live)."""
    features: str = ""
    """Of the critic: linear, quadratic, quartic."""
    reward: str = ""
    """potential: -I - costs; improvement: fall of the mean squared imbalance - costs; waiting (live): what
    all tasks that wait have yet to wait, negative, - costs."""
    actor_rate: float = _OWN
    """Learning rate of the actors (AdamW)."""
    critic_rate: float = _OWN
    """Learning rate of the critics (AdamW)."""
    discount: float = _OWN
    """gamma; 1 with an average reward."""
    average_step: float = _OWN
    """Step of the average reward; 0: there is none."""
    critic_trace: float = _OWN
    """lambda of the critics."""
    actor_trace: float = _OWN
    """lambda of the actors."""
    migration_cost: float = _OWN
    """Cost of a migration, in units of the reward; thesis and myopic take the scenario's."""
    steal_cost: float = _OWN
    """Cost of a request for work."""
    reward_scale: float = _OWN
    """Factor on the imbalance in the reward."""
    warm_start: float = _OWN
    """Weight of a server's load at the start: -w in migration, +w in stealing. Below 0: the unit of load over
    the broadcast period, by which the tasks of one window level an imbalance."""
    warm_others: float = _OWN
    """Live: -w of the others' waits and of all service times at the start."""
    warm_keep: float = _OWN
    """Live: bias of keeping a task at the start, and against asking nobody for work."""
    rate_weight: float = _OWN
    """Of a new service time in a server's average, once there are as many."""
    init_scale: float = _OWN
    """Other weights at the start are uniform within +- this."""
    batch: int = 0
    """Windows per update; 0: the variant's own."""
    consensus_every: int = 0
    """Updates per consensus; 0: the variant's own."""
    num_envs: int = 1
    """Episodes per round, one after the other."""

    def to_native(self, scenario: RackScenario, seed: int) -> Any:
        """native.MalcolmConfig. UserError for an unknown variant or word."""
        if self.variant not in VARIANTS:
            raise unknown("algo.variant", self.variant, VARIANTS)
        if self.num_envs < 1:
            raise UserError(f"algo.num_envs = {self.num_envs}: must be at least 1")
        presets = {"code": native.MalcolmConfig.code, "live": native.MalcolmConfig.live}
        config = presets.get(self.variant, native.MalcolmConfig.thesis)()
        if self.variant == "myopic":
            config.reward, config.features = "improvement", "linear"
            config.discount, config.actor_rate = 0.0, 1e-3
        if self.variant != "code":
            game = scenario.game
            config.migration_cost, config.steal_cost = game.migration_cost, game.steal_cost
            config.load_unit_s = game.load_unit_s
        if config.live_draws:  # its start is made for waits in such units
            config.load_unit_s = 2 * scenario.workload.mean_service_s()
        config.seed = seed
        if self.warm_start >= 0:
            config.warm_start = self.warm_start
        elif not config.live_draws:
            config.warm_start = config.load_unit_s / scenario.loads.broadcast_period_s
        try:
            for name in ("inputs", "features", "reward"):
                if getattr(self, name):
                    setattr(config, name, getattr(self, name))
        except ValueError as error:
            raise UserError(f"algo.{error}") from None
        for name in ("batch", "consensus_every"):
            if getattr(self, name) != 0:
                setattr(config, name, _count(name, getattr(self, name)))
        for name in _NUMBERS:
            if getattr(self, name) >= 0:
                setattr(config, name, getattr(self, name))
        return config


_NUMBERS = (
    "actor_rate",
    "critic_rate",
    "discount",
    "average_step",
    "critic_trace",
    "actor_trace",
    "migration_cost",
    "steal_cost",
    "reward_scale",
    "warm_others",
    "warm_keep",
    "rate_weight",
    "init_scale",
)


def _count(name: str, value: int) -> int:
    if not 1 <= value < 2**31:
        raise UserError(f"algo.{name} = {value}: must be 1 to 2^31 - 1, or 0 for the variant's own")
    return value


@dataclass
class RackRound:
    """Episodes played one after the other, and what was learnt from them."""

    seeds: Sequence[int]
    stats: list[dict[str, Any]]  # of native.RackWorld.stats, while learning
    curves: list[dict[str, NDArray[np.float64]]]  # of native.malcolm_curve
    learning: dict[str, float] = field(default_factory=dict)  # means over windows
    bytes_exchanged: int = 0  # by the consensus
    cpu_s: float = 0.0  # spent on it by other processes


class MalcolmTrainer:
    """Malcolm on a scenario, between rounds. One thread: episodes go on from one another."""

    def __init__(self, config: Malcolm, scenario: RackScenario, seed: int, threads: int) -> None:
        """UserError if the scenario or a hyper-parameter does not fit."""
        del threads
        self.scenario, self.seed, self.episodes = scenario, seed, 0
        self.rack = scenario.to_native()
        self.malcolm = config.to_native(scenario, seed)
        windows = scenario.episode.horizon_s / scenario.loads.broadcast_period_s
        self._curve_windows = max(1, int(windows / CURVE_POINTS))
        self.learned: bytes | None = None
        try:
            world = native.RackWorld(self.rack, self._rule(), 0)
        except ValueError as error:
            raise UserError(f"algo.{error}") from None
        self.parameters = native.malcolm_parameters(world)  # (N, P)

    def _rule(self) -> Any:
        return native.malcolm_rule(self.malcolm, learning=self.learned, curve_windows=self._curve_windows)

    def frozen_rule(self) -> Any:
        """native.RackRule that plays what has been learnt, and learns no more."""
        return native.malcolm_rule(self.malcolm, frozen=True, parameters=self.parameters)

    def round(self, episodes: int) -> RackRound:
        """Play that many episodes, learning all along. UserError if parameters are no longer finite."""
        played = RackRound([], [], [])
        seeds = [native.train_seed(self.seed, self.episodes + index) for index in range(episodes)]
        for seed in seeds:
            world = native.RackWorld(self.rack, self._rule(), seed)
            world.drain()
            parameters = native.malcolm_parameters(world)
            if not np.isfinite(parameters).all():
                raise UserError("training: parameters are not finite; the last checkpoint is kept")
            self.learned, self.parameters = native.malcolm_learning(world), parameters
            played.stats.append(world.stats())
            played.curves.append(native.malcolm_curve(world))
            played.bytes_exchanged += native.malcolm_counts(world)["consensus_bytes"]
        played.seeds = seeds
        names = [name for name in played.curves[0] if name not in ("t_s", "imbalance_us")]
        rows = {name: np.concatenate([curve[name] for curve in played.curves]) for name in names}
        played.learning = {name: float(values.mean()) for name, values in rows.items()}
        self.episodes += episodes
        return played

    def policy(self) -> bytes:
        """The policy file (trainers/malcolm_policy.py)."""
        return malcolm_policy.encode(self.malcolm, self.parameters)

    def state(self) -> dict[str, Any]:
        """What the next episode starts from."""
        learned = np.frombuffer(self.learned or b"", np.uint8)
        return {"episodes": self.episodes, "learned": learned, "parameters": self.parameters}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from `state()`. UserError for a state of another rack or build."""
        self.episodes = int(state["episodes"])
        self.learned = state["learned"].numpy().tobytes() or None
        self.parameters = state["parameters"].numpy()
        try:
            self._rule().check(self.rack)
        except ValueError as error:
            raise UserError(f"checkpoint: {error}") from None
