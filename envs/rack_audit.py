"""The potential audit of the rack: how far Malcolm's payoff is from an exact potential game, by branching.

As in audit.py, snapshots of a running rack are continued in two branches that meet the same tasks; in one of
them a server plays other distributions for one window. epsilon = |delta u_i - delta phi|, with the payoffs
u_i = -I(x) - C_i and the potential phi = -I(x) - sum_j C_j of core/rack_payoff.h.

- *Stage*: the others' actions are fixed, as the potential's definition has it. An action is what a server
  drew in the window: where its tasks went, whom it asked for work. x is the load right after these were
  placed: of the snapshot, plus tasks, with one task moved for each request, never below 0. I is common and
  the others' costs do not move, so epsilon is 0 but for rounding.
- *Horizon H*: undiscounted sums of u_i and phi over H windows as they happen; the deviation lasts one window.
  Now the others answer the state that was changed: their draws meet other completions, a profile that sees
  loads draws from other distributions, and their costs, which u_i does not count, move phi.

Profiles: `random`, constant distributions, drawn anew for each sample; `linear`, which prefers what it knows
as less loaded for migration and more loaded for stealing. docs/audit.md has the derivations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard import native
from steelyard.envs.audit import error_record
from steelyard.envs.errors import UserError, bad_value, unknown
from steelyard.envs.rack_batch import REWARDS, RackBatch
from steelyard.envs.rack_scenario import RackScenario

RANDOM, LINEAR = "random", "linear"
PROFILES = (RANDOM, LINEAR)
Array = NDArray[np.float64]
_CHANCE = 0xA0D18  # apart from every other use of a seed
_FIRST, _LAST = 100, 400  # windows after which a snapshot is taken
_BASE, _DEVIATION = 0, 1
_MAX_NUMBERS = 50_000_000


@dataclass(frozen=True)
class RackBranches:
    """S samples; axis 1 is the base branch, then the deviation; N servers, H windows; in units of the reward.

    agent (S,): who deviates. stage_costs (S, 2, N), stage_imbalance (S, 2): after placement. costs
    (S, 2, H, N), imbalance (S, 2, H): of each window as it happened.
    """

    agent: NDArray[np.int64]
    stage_imbalance: Array
    stage_costs: Array
    imbalance: Array
    costs: Array


def sample_rack(
    scenario: RackScenario,
    profile: str,
    seeds: Sequence[int],
    samples: int,
    steps: int = 1,
    on_progress: Callable[[int, int, str], None] = lambda done, total, what: None,
) -> RackBranches:
    """Branch `samples` snapshots, H = `steps` windows. Sample k is on seed k modulo their number; agent, time
    and deviation are a pure function of (seed, k). UserError for an unknown profile, too short an episode, or
    one server.
    """
    if profile not in PROFILES:
        raise unknown("policy of an audited rack", profile, PROFILES)
    if scenario.num_servers < 2:
        raise bad_value("rack.servers", scenario.num_servers, "2 servers or more to audit a game")
    sampler = _Sampler(scenario, profile, steps)
    n = scenario.num_servers
    if samples * 2 * steps * n > _MAX_NUMBERS:
        raise bad_value("samples", samples, f"at most {_MAX_NUMBERS // (2 * steps * n)} with this horizon")
    found = RackBranches(
        np.zeros(samples, np.int64),
        np.zeros((samples, 2)),
        np.zeros((samples, 2, n)),
        np.zeros((samples, 2, steps)),
        np.zeros((samples, 2, steps, n)),
    )
    for k in range(samples):
        on_progress(k, samples, f"{scenario.name} {profile}")
        sampler(int(seeds[k % len(seeds)]), k, found)
    if np.array_equal(found.stage_imbalance[:, _BASE], found.stage_imbalance[:, _DEVIATION]):
        raise UserError(f"scenario {scenario.name}: no deviation moved a task; a longer window may help")
    return found


class _Sampler:
    def __init__(self, scenario: RackScenario, profile: str, steps: int) -> None:
        self.batch = RackBatch(scenario, 2, reward="payoff", autoreset=False)
        self.game, self.profile, self.steps = scenario.game, profile, steps
        windows = int(scenario.episode.horizon_s / self.batch.window_s)
        self.first, self.last = min(_FIRST, windows // 2), min(_LAST, windows - steps - 1)
        if self.last < max(self.first, 1):
            allowed = f"at most {windows - 1 - max(self.first, 1)}, so that the episode holds a snapshot"
            raise bad_value("horizon", steps, allowed)
        rates = np.array([server.workers * server.speed for server in scenario.servers])
        self.wait = scenario.workload.mean_service_s() / rates / scenario.game.load_unit_s

    def __call__(self, seed: int, k: int, found: RackBranches) -> None:
        """Fill sample k."""
        n, batch = self.batch.num_servers, self.batch
        key = np.array([seed, _CHANCE + (k << 20)], np.uint64)
        chance = np.random.Generator(np.random.Philox(key=key))
        agent, begin = int(chance.integers(n)), int(chance.integers(self.first, self.last + 1))
        fixed = chance.uniform(-1, 1, (n, 2 * n)) / self.game.logit_scale  # logits from -1 to 1
        deviation = chance.uniform(-1, 1, 2 * n)
        batch.reset(seeds=[seed, seed])
        for _ in range(begin):
            batch.step(self._act(fixed))
        found.agent[k] = agent
        tasks = batch.buffers.observations[_BASE, :, n].astype(float)
        for h in range(self.steps):
            actions = self._act(fixed)
            if h == 0:
                actions[_DEVIATION, agent] = deviation
            batch.step(actions)
            moves = batch.moves()
            loads = batch.expected_waits_us() * (1e-6 / self.game.load_unit_s)
            for branch in (_BASE, _DEVIATION):
                kept = found.imbalance[k, branch, h : h + 1], found.costs[k, branch, h]
                self._pay(loads[branch], moves[branch], *kept)
            if h == 0:
                moves[_DEVIATION, :, np.arange(n) != agent] = moves[_BASE, :, np.arange(n) != agent]
                for branch in (_BASE, _DEVIATION):
                    placed = self._placed(tasks, moves[branch])
                    kept = found.stage_imbalance[k, branch : branch + 1], found.stage_costs[k, branch]
                    self._pay(placed, moves[branch], *kept)

    def _act(self, fixed: Array) -> Array:
        """Actions (2, N, 2 N) of the profile in both branches."""
        if self.profile == RANDOM:
            return np.stack([fixed, fixed])
        seen = self.batch.buffers.observations[:, :, : self.batch.num_servers].astype(float)
        return np.clip(np.concatenate([1 - seen, seen - 1], -1), -1, 1)

    def _placed(self, tasks: Array, moves: NDArray[np.uint32]) -> Array:
        """Loads (N,) after tasks and requests (2, N, N) were placed on those of the snapshot."""
        counted = moves.astype(float)
        after = tasks + counted[0].sum(0) + counted[1].sum(1) - counted[1].sum(0)
        return np.maximum(after, 0) * self.wait

    def _pay(self, loads: Array, moves: NDArray[np.uint32], imbalance: Array, costs: Array) -> None:
        """Write I into imbalance (1,) and C_i into costs (N,), as the core computes u and phi."""
        away = moves * (1 - np.eye(self.batch.num_servers, dtype=np.uint32))
        counts = away.sum(2).tolist()
        game = self.game
        payoffs, _ = native.rack_payoffs(
            loads.astype(np.float32), counts[0], counts[1], game.migration_cost, game.steal_cost
        )
        imbalance[0] = native.load_imbalance(loads.astype(np.float32))
        costs[:] = -imbalance[0] - payoffs


class RackAudit:
    """Payoffs and potentials of sampled branches."""

    def __init__(self, branches: RackBranches) -> None:
        self.branches = branches

    def deltas(self, kind: str, steps: int) -> tuple[Array, Array, Array]:
        """Deviation minus base of the return of the agent, of phi, of -I, each (S,); steps 0: the stage."""
        found = self.branches
        if steps:
            imbalance, costs = found.imbalance[..., :steps].sum(2), found.costs[:, :, :steps].sum(2)
        else:
            imbalance, costs = found.stage_imbalance, found.stage_costs
        own = np.take_along_axis(costs, found.agent[:, None, None], 2)[..., 0]
        phi = -imbalance - costs.sum(2)
        payoff = phi if kind == "phi" else -imbalance - own
        return _delta(payoff), _delta(phi), _delta(-imbalance)

    def record(self, kind: str, steps: int) -> dict[str, Any]:
        """The error of the potential property; keys as in docs/audit.md."""
        named = {"reward": kind, "measure": "true"}
        return named | error_record(*self.deltas(kind, steps), steps) | {"potential": "phi on true"}


def audited_rack(rewards: Sequence[str] = ()) -> list[str]:
    """The rewards to audit, all by default. UserError for an unknown one."""
    for kind in rewards:
        if kind not in REWARDS:
            raise unknown("reward of a rack", kind, REWARDS)
    return list(dict.fromkeys(rewards or REWARDS))


def _delta(values: Array) -> Array:
    return np.asarray(values[:, _DEVIATION] - values[:, _BASE])
