"""The potential audit: how far a reward is from an exact potential game, by branching the simulator.

A game with payoffs r_i is a potential game if a function phi exists such that, whenever one agent deviates,
its payoff changes by what phi changes (Monderer, Shapley, "Potential Games", 1996; Distr-LB, Def. 8). The
audit takes snapshots of a running world, lets one agent deviate in one of two branches that meet the same
flows (common random numbers), and measures

    epsilon = |delta r_i - delta phi|,    phi the team reward of the same form.

- *Stage*: the paper's l_ij(t) = (X_ij(t-1) + w_i(t) alpha_ij(t)) / v_j, the load right after the flows of one
  step were placed. Agent i's flows lie where its deviation put them, the others' where they put them in the
  base branch. Durations cannot be placed: they are read at the end of the step.
- *Horizon H*: undiscounted sums of r_i and phi over H steps; the deviation lasts one step, then all follow
  their profile again.

`measure` is that of `rewards.py`. phi is over the global vector of the measure: the true remaining time for
`own` and `true`, the mean of the agents' durations for `durations`. docs/audit.md has the derivations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard import native
from steelyard.envs.errors import UserError, bad_value
from steelyard.envs.rewards import MEASURES, REWARDS, check_reward
from steelyard.envs.scenario import Scenario
from steelyard.envs.schema import REDUCTIONS, SERVER_FEATURES

STAGE = "stage"
RANDOM = "random"
Array = NDArray[np.float64]
OnProgress = Callable[[int, int, str], None]
"""Called with (samples done, samples in all, what is sampled)."""

_CHANCE = 0xA0D17  # apart from every other use of a seed
_DURATION = 1 + REDUCTIONS.index("wdmean")  # in a server's features: weighted discounted mean duration
_BASE, _DEVIATION = 0, 1
_MAX_NUMBERS = 50_000_000  # of one array of branches: 400 MB


@dataclass(frozen=True)
class Profile:
    """Who plays. rule: what all agents follow; None: constant random weights, drawn anew for every sample."""

    name: str = RANDOM
    rule: native.RuleConfig | None = None


@dataclass(frozen=True)
class Branches:
    """S samples; axis 1 is the base branch, then the deviation; M agents, N servers, H steps. Loads in s.

    agent (S,): who deviates. stage (S, 2, M, N): each agent's load after placement. loads, durations
    (S, 2, H, M, N): each agent's share of the true remaining time, and the durations that it has measured,
    after 1 .. H steps.
    """

    agent: NDArray[np.int64]
    stage: Array
    loads: Array
    durations: Array


def check_horizon(text: str) -> int:
    """Steps of a horizon, 0 for the stage. UserError for anything but `stage` or a whole number above 0."""
    if text == STAGE:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) < 8 and int(text) > 0):
        raise bad_value("horizon", text, "'stage' or a number of steps, 1 or more")
    return int(text)


def audited(rewards: Sequence[str] = (), measure: str | None = None) -> list[tuple[str, str]]:
    """(reward, measure) pairs. Without rewards: all that the measure fits.

    Without a measure: `own` and `durations` for the reward of one agent, `true` for team and marginal ones
    (over true loads the former is a team reward). UserError for unknown names and pairs that do not exist.
    """
    pairs = []
    for kind in rewards or REWARDS:
        single = kind in REWARDS and not REWARDS[kind].team and kind != "marginal_vbf"
        measures = [measure] if measure is not None else ["own", "durations"] if single else ["true"]
        if not rewards and measure in MEASURES and not single and measure != "true":
            continue
        for each in measures:
            check_reward(kind, each)
            pairs.append((kind, each))
    return list(dict.fromkeys(pairs))


def sample(
    scenario: Scenario,
    profile: Profile,
    seeds: Sequence[int],
    samples: int,
    steps: int = 1,
    on_progress: OnProgress = lambda done, total, what: None,
) -> Branches:
    """Branch `samples` snapshots, H = `steps`. Sample k is on seed k modulo their number; agent, time and
    deviation are a pure function of (seed, k). UserError if the episode is too short, or if the profile
    follows no weights, so that nothing can deviate.
    """
    sampler = _Sampler(scenario, profile, steps)
    shape = (samples, 2, steps, scenario.num_agents, scenario.num_servers)
    if math.prod(shape) > _MAX_NUMBERS:
        allowed = f"at most {_MAX_NUMBERS * samples // math.prod(shape)} with a horizon of {steps} steps"
        raise bad_value("samples", samples, allowed)
    found = Branches(
        np.zeros(samples, np.int64), np.zeros(shape[:2] + shape[3:]), np.zeros(shape), np.zeros(shape)
    )
    for k in range(samples):
        on_progress(k, samples, f"{scenario.name} {profile.name}")
        sampler(int(seeds[k % len(seeds)]), k, found)
    if np.array_equal(found.stage[:, _BASE], found.stage[:, _DEVIATION]):
        raise UserError(
            f"policy {profile.name!r}: no deviation of an agent's weights moved a flow; "
            "audit one that follows weights, for example sed"
        )
    return found


class _Sampler:
    def __init__(self, scenario: Scenario, profile: Profile, steps: int) -> None:
        rule = profile.rule if profile.rule is not None else native.RuleConfig("policy")
        self.random, self.hosted = profile.rule is None, rule.policy
        self.scenario, self.steps, self.step_s = scenario, steps, scenario.control.step_s
        self.window_s = scenario.control.actuation_delay_s + self.step_s
        self.world = native.World(scenario.to_native(), rule, 0)
        self.first = max(1, round(scenario.episode.warmup_s / self.step_s))
        self.last = round(scenario.episode.horizon_s / self.step_s) - steps
        if self.last < self.first:
            allowed = f"at most {steps + self.last - self.first}, so that the episode holds a snapshot"
            raise bad_value("horizon", steps, allowed)

    def __call__(self, seed: int, k: int, found: Branches) -> None:
        """Fill sample k."""
        m, n = self.scenario.num_agents, self.scenario.num_servers
        key = np.array([seed, _CHANCE + (k << 20)], np.uint64)
        chance = np.random.Generator(np.random.Philox(key=key))
        agent, begin = int(chance.integers(m)), int(chance.integers(self.first, self.last + 1))
        actions = chance.uniform(-1, 1, (m + 1, n)).astype(np.float32)
        self.world.reset(seed)
        if self.random:
            for i in range(m):
                self.world.act(i, actions[i])
        self.world.run_until(begin * self.step_s)
        found.agent[k] = agent
        found.stage[k] = self._stage(begin, agent, actions[m])
        for branch in (_BASE, _DEVIATION):
            world = self.world.clone()
            undo = self._deviate(world, agent, actions[m], actions[agent]) if branch else None
            for h in range(self.steps):
                world.run_until((begin + h + 1) * self.step_s)
                if h == 0 and undo is not None:
                    undo()
                found.loads[k, branch, h] = _loads(world, m)
                seen = world.observe_all()[:, : SERVER_FEATURES * n]
                found.durations[k, branch, h] = seen[:, _DURATION::SERVER_FEATURES]

    def _stage(self, begin: int, agent: int, action: NDArray[np.float32]) -> Array:
        """(2, M, N) loads after placement."""
        until = begin * self.step_s + self.window_s  # a new action places a whole step's flows till then
        base, other = self.world.clone(), self.world.clone()
        self._deviate(other, agent, action, action)
        placed = base.place_until(until)
        deviating = placed.copy()
        deviating[agent] = other.place_until(until)[agent]
        return _loads(self.world, len(placed)) + np.stack([placed, deviating])

    def _deviate(
        self,
        world: native.World,
        agent: int,
        action: NDArray[np.float32],
        before: NDArray[np.float32],
    ) -> Callable[[], None] | None:
        """Give the agent other weights; what ends that after a step, None if the profile does so itself."""
        if self.random:
            world.act(agent, action)
            return lambda: world.act(agent, before)
        if self.hosted:  # acts again at the next boundary
            world.act(agent, action)
            return None
        weights = world.state()["weights"][agent]
        world.set_weights(agent, [native.weight_of_action(float(a)) for a in action])
        deviating = world.state()["weights"][agent]

        def undo() -> None:
            if world.state()["weights"][agent] == deviating:  # else the rule has set its own
                world.set_weights(agent, weights)

        return undo


def _loads(world: native.World, num_agents: int) -> Array:
    return np.stack([world.remaining_time(i) for i in range(num_agents)])


class Audit:
    """Payoffs and potentials of sampled branches; every function of the loads is computed once."""

    def __init__(self, branches: Branches) -> None:
        self.branches = branches
        self._found: dict[tuple[str, str, bool], Array] = {}

    def deltas(self, kind: str, measure: str, steps: int) -> tuple[Array, Array, Array]:
        """Deviation minus base of the agent's return, of phi, and of phi over true loads, each (S,).

        steps: of the horizon; 0 is the stage.
        """
        form = kind.removeprefix("team_") if kind != "marginal_vbf" else "vbf"
        load = self._delta(form, "team", steps)
        phi = self._delta(form, "team_durations", steps) if measure == "durations" else load
        if kind == "marginal_vbf":
            return self._delta(kind, "marginal", steps), phi, load
        if REWARDS[kind].team or measure == "true":
            return phi, phi, load
        return self._delta(form, measure, steps), phi, load

    def record(self, kind: str, measure: str, steps: int) -> dict[str, Any]:
        """The error of the potential property; keys as in docs/audit.md."""
        form = kind.removeprefix("team_") if kind != "marginal_vbf" else "vbf"
        potential = f"team_{form} on {'durations' if measure == 'durations' else 'true'}"
        errors = error_record(*self.deltas(kind, measure, steps), steps)
        return {"reward": kind, "measure": measure, **errors, "potential": potential}

    def _delta(self, form: str, what: str, steps: int) -> Array:
        values = self._values(form, what, steps == 0)
        returns = values if steps == 0 else values[:, :, :steps].sum(2)
        return np.asarray(returns[:, _DEVIATION] - returns[:, _BASE])

    def _values(self, form: str, what: str, stage: bool) -> Array:
        """(S, 2) at the stage, (S, 2, H) over the horizon."""
        if stage and what in ("durations", "team_durations"):
            return self._values(form, what, False)[:, :, 0]
        key = (form, what, stage)
        if key not in self._found:
            self._found[key] = self._compute(form, what, stage)
        return self._found[key]

    def _compute(self, form: str, what: str, stage: bool) -> Array:
        each = self.branches.stage if stage else self.branches.loads
        if what in ("durations", "team_durations"):
            each = self.branches.durations
        if what == "team":
            return _rewards(form, each.sum(-2))
        if what == "team_durations":
            return _rewards(form, each.mean(-2))
        index = self.branches.agent.reshape(-1, *[1] * (each.ndim - 1))
        mine = np.take_along_axis(each, index, -2).squeeze(-2)
        if what != "marginal":
            return _rewards(form, mine)
        others = np.where(np.arange(each.shape[-2])[:, None] == index, 0.0, each).sum(-2)
        pairs = zip(mine.reshape(-1, mine.shape[-1]), others.reshape(-1, mine.shape[-1]), strict=True)
        return np.array([native.marginal_vbf(*pair) for pair in pairs]).reshape(mine.shape[:-1])


def error_record(payoff: Array, phi: Array, load: Array, steps: int) -> dict[str, Any]:
    """What follows in a record from changes of the payoff, of phi, and of phi over true loads, each (S,)."""
    epsilon, scale = np.abs(payoff - phi), float(np.abs(phi).mean())
    middle, high, tail = np.quantile(epsilon, [0.5, 0.9, 0.99])
    return {
        "horizon": steps or STAGE,
        "samples": len(epsilon),
        "epsilon_mean": float(epsilon.mean()),
        "epsilon_max": float(epsilon.max()),
        "epsilon_p50": float(middle),
        "epsilon_p90": float(high),
        "epsilon_p99": float(tail),
        "scale": scale,
        "relative": float(epsilon.mean()) / scale if scale > 0 else None,
        "agreement": _agreement(payoff, phi),
        "load_agreement": _agreement(payoff, load),
        "load_correlation": _correlation(payoff, load),
    }


def _rewards(form: str, vectors: Array) -> Array:
    """The reward of every vector: (..., N) -> (...)."""
    rows = vectors.reshape(-1, vectors.shape[-1])
    return np.array([native.reward(form, row) for row in rows]).reshape(vectors.shape[:-1])


def _agreement(payoff: Array, phi: Array) -> float | None:
    """Share of the deviations that move phi in which payoff moves the same way; None if none moves it."""
    moves = np.abs(phi) > 1e-9 * np.abs(phi).max(initial=0.0)
    return float((np.sign(payoff) == np.sign(phi))[moves].mean()) if moves.any() else None


def _correlation(payoff: Array, phi: Array) -> float | None:
    if len(phi) < 2 or not (payoff.std() > 0 and phi.std() > 0):
        return None
    return float(np.corrcoef(payoff, phi)[0, 1])
