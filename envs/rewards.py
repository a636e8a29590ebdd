"""The rewards by name: what each one is, where it comes from, and the function itself.

Every reward maps a vector `l` (n,) of one load per server to a number; the larger, the fairer. The formulas
live in the native simulator, once; here are their names, their documentation and a way to call them on any
vector.

Sources: *Distr-LB* is Yao, Ding, "Learning Distributed and Fair Policies for Network Load Balancing as Markov
Potential Game" (NeurIPS 2022); *thesis* is Yao, "Autonomous Service Management in the Cloud" (2022).

`measure` says what `l` is, for agent i and server j:

- `durations` (default): weighted discounted mean duration of the flows that this agent sees on server j [s];
  observable by a real load balancer (Distr-LB, Sec. 3.4).
- `true`: true remaining time of server j [s], all agents' flows together; the simulator alone knows it.
- `own`: the part of the true remaining time that agent i's own flows bring [s].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from steelyard.envs.errors import bad_value, unknown

if TYPE_CHECKING:  # scenarios need the names alone, and a command should start without numpy
    import numpy as np
    from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True)
class RewardInfo:
    """Documentation of one reward: its formula over l (n,), its source, and how to read it."""

    formula: str
    source: str
    meaning: str
    team: bool = False


_SINGLE = {
    "vbf": RewardInfo(
        "-sum_j (l_j - mean l)^2 / n",
        "Distr-LB, Def. 2, variance-based fairness",
        "0 when all servers are equally loaded; dominated by large imbalances.",
    ),
    "log_vbf": RewardInfo(
        "-log(var l + eps)",
        "Distr-LB, App. E.2.1",
        "keeps a slope when the variance is already close to zero.",
    ),
    "vbf+log_vbf": RewardInfo(
        "-var l - log(var l + eps)",
        "Distr-LB, App. E.2.1",
        "the variance far from the balance, its logarithm close to it.",
    ),
    "pbf": RewardInfo(
        "prod_j l_j / max l",
        "Distr-LB, Def. 5, product-based fairness (also called G)",
        "in [0, 1]; 1 when all are equal.",
    ),
    "jain": RewardInfo(
        "(sum_j l_j)^2 / (n sum_j l_j^2)",
        "thesis, Sec. 4.4.2, Jain's fairness index",
        "in [1/n, 1]; 1 when all are equal.",
    ),
    "makespan": RewardInfo("-max l", "Distr-LB, Def. 1", "the time until the last server is done."),
    "log_makespan": RewardInfo(
        "-log(max l + eps)", "Distr-LB, App. E.2.1", "the makespan on a scale free of its unit."
    ),
    "cv": RewardInfo(
        "-std l / mean l", "Distr-LB, App. E.2.1, coefficient of variation", "imbalance relative to the load."
    ),
}

REWARDS: dict[str, RewardInfo] = {
    **_SINGLE,
    "marginal_vbf": RewardInfo(
        "F(l) - F(l_-i) = -var l_i - 2 cov(l_i, l_-i), with F = vbf",
        "difference reward of F; exact potential game at the stage, which vbf on the own share is not",
        "what agent i's own load adds to the imbalance that the others leave.",
    ),
    **{
        f"team_{name}": RewardInfo(
            f"{info.formula}, over the loads of the whole system",
            info.source,
            f"one number shared by all agents; {info.meaning}",
            team=True,
        )
        for name, info in _SINGLE.items()
    },
}

MEASURES: dict[str, str] = {
    "durations": "weighted discounted mean flow duration per server as the agent sees it [s]",
    "true": "true remaining time per server [s]",
    "own": "the agent's own share of the true remaining time per server [s]",
}


def check_reward(kind: str, measure: str, key: str = "reward") -> None:
    """Raises UserError unless both are known and the reward `kind` is defined on the `measure`."""
    if kind not in REWARDS:
        raise unknown(f"{key}.kind", kind, REWARDS)
    if measure not in MEASURES:
        raise unknown(f"{key}.measure", measure, MEASURES)
    if kind == "marginal_vbf" and measure != "true":
        raise bad_value(f"{key}.measure", measure, "'true' for marginal_vbf, a difference of true loads")
    if REWARDS[kind].team and measure == "own":
        raise bad_value(
            f"{key}.measure", measure, f"durations or true for {kind}, which is over all agents' load"
        )


def _load(name: str, values: ArrayLike) -> NDArray[np.float64]:
    import numpy as np

    vector = np.asarray(values, dtype=np.float64)
    if vector.ndim != 1 or vector.size == 0 or not np.isfinite(vector).all():
        raise bad_value(name, values, "a vector of one or more finite loads, one per server")
    return vector


def reward(kind: str, l: ArrayLike) -> float:  # noqa: E741
    """The reward `kind` of a load vector l (n,); for team rewards the global one. Raises UserError."""
    from steelyard import native

    if kind not in REWARDS or kind == "marginal_vbf":
        raise unknown("reward of one vector", kind, set(REWARDS) - {"marginal_vbf"})
    return native.reward(kind, _load("l", l))


def marginal_vbf(l_i: ArrayLike, l_minus_i: ArrayLike) -> float:
    """F(l_i + l_-i) - F(l_-i) with F = -variance: agent i's load l_i (n,) on top of the others' l_-i (n,)."""
    from steelyard import native

    return native.marginal_vbf(_load("l_i", l_i), _load("l_minus_i", l_minus_i))
