"""Statistics of a study: inter-quartile mean, stratified bootstrap, profiles, probability of improvement.

Definitions follow Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice"
(NeurIPS 2021, Sec. 4) as implemented by rliable, with one extension: the scores of one *stratum* (a
scenario) are a matrix (num_runs, num_seeds) of training runs by evaluation seeds. A rule has one run, and the
bootstrap over its seeds is rliable's over runs. A learner has several: episodes of one training run are not
independent, so runs and seeds are each drawn with replacement (crossed bootstrap), never single episodes.
Two policies that saw the same evaluation seeds are paired: one draw of seeds serves both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Scores = Sequence[Array]
"""One (num_runs, num_seeds) matrix per stratum."""
Statistic = Callable[..., Array]
"""Takes each group's strata with a leading replicate axis, (R, num_runs, num_seeds), and returns (R,)."""

_ELEMENTS_PER_CHUNK = 4_000_000  # bounds the memory of one batch of replicates to about 32 MB per group


@dataclass(frozen=True)
class Estimate:
    """A point estimate with its bootstrap percentile interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}]"


def iqm(scores: Scores) -> Array:
    """Mean of the middle half of all scores. strata: (..., num_runs, num_seeds) -> (...)."""
    flat = np.sort(_flatten(scores), axis=-1)
    cut = flat.shape[-1] // 4  # scipy.stats.trim_mean(proportiontocut=0.25), which rliable uses
    return np.asarray(flat[..., cut : flat.shape[-1] - cut].mean(axis=-1))


def mean(scores: Scores) -> Array:
    """Mean over strata of the stratum's mean. strata: (..., num_runs, num_seeds) -> (...)."""
    return np.asarray(np.mean([s.mean(axis=(-2, -1)) for s in scores], axis=0))


def difference(x: Scores, y: Scores) -> Array:
    """Mean of x minus mean of y; paired when the caller draws the same seeds for both."""
    return mean(x) - mean(y)


def relative_iqm(x: Scores, y: Scores) -> Array:
    """IQM of x over IQM of y, minus 1: -0.1 reads "x is 10 % below y"."""
    return iqm(x) / iqm(y) - 1.0


def probability_of_improvement(x: Scores, y: Scores) -> Array:
    """P(X > Y) + P(X = Y) / 2 for a score of x and one of y in the same stratum, averaged over strata.

    This is rliable's definition (Mann-Whitney U over n*m); scores are higher-is-better.
    """
    return np.asarray(np.mean([_mann_whitney(a, b) for a, b in zip(x, y, strict=True)], axis=0))


def performance_profile(scores: Scores, thresholds: Array) -> Array:
    """Share of scores above each threshold. strata (..., runs, seeds), thresholds (T,) -> (..., T)."""
    flat = np.sort(_flatten(scores), axis=-1)
    rows = flat.reshape(-1, flat.shape[-1])
    above = np.stack([1.0 - np.searchsorted(row, thresholds, side="right") / row.size for row in rows])
    return above.reshape(*flat.shape[:-1], len(thresholds))


def bootstrap(
    statistic: Statistic,
    *groups: Scores,
    paired: bool = True,
    replicates: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> Estimate:
    """Estimate of statistic(*groups) with its stratified percentile interval.

    groups: for each policy, one (num_runs, num_seeds) matrix per stratum. With paired=True groups share the
    draw of seeds, so they must have the same number of seeds in every stratum (ValueError otherwise).
    """
    _check_groups(groups, paired)
    value = float(statistic(*groups))
    drawn = bootstrap_replicates(statistic, *groups, paired=paired, replicates=replicates, seed=seed)
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return Estimate(value, float(low), float(high))


def bootstrap_replicates(
    statistic: Statistic, *groups: Scores, paired: bool = True, replicates: int = 2000, seed: int = 0
) -> Array:
    """The statistic of each bootstrap replicate: (replicates, ...)."""
    _check_groups(groups, paired)
    rng = np.random.default_rng(seed)
    size = max(sum(s.size for s in group) for group in groups)
    chunk = max(1, min(replicates, _ELEMENTS_PER_CHUNK // size))
    parts = []
    for start in range(0, replicates, chunk):
        count = min(chunk, replicates - start)
        parts.append(statistic(*_resample(groups, count, paired, rng)))
    return np.concatenate(parts)


def profile_band(
    scores: Scores, thresholds: Array, *, replicates: int = 500, level: float = 0.95, seed: int = 0
) -> tuple[Array, Array, Array]:
    """Performance profile and its pointwise interval: three (T,) arrays."""
    drawn = bootstrap_replicates(
        lambda s: performance_profile(s, thresholds), scores, replicates=replicates, seed=seed
    )
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return performance_profile(scores, thresholds), low, high


def _flatten(scores: Scores) -> Array:
    """(..., total number of scores)."""
    return np.concatenate([s.reshape(*s.shape[:-2], -1) for s in scores], axis=-1)


def _mann_whitney(x: Array, y: Array) -> Array:
    """U / (n m) of the last two axes of x against those of y, by ranks, in O((n + m) log m)."""
    x_rows = x.reshape(-1, x.shape[-2] * x.shape[-1])
    y_rows = np.sort(y.reshape(-1, y.shape[-2] * y.shape[-1]), axis=-1)
    wins = [
        (np.searchsorted(b, a, side="left") + np.searchsorted(b, a, side="right")).mean() / (2 * b.size)
        for a, b in zip(x_rows, y_rows, strict=True)
    ]
    return np.asarray(wins).reshape(x.shape[:-2])


def _resample(
    groups: Sequence[Scores], count: int, paired: bool, rng: np.random.Generator
) -> list[list[Array]]:
    """count replicates of every stratum of every group, runs and seeds drawn with replacement."""
    drawn: list[list[Array]] = [[] for _ in groups]
    for stratum in range(len(groups[0])):
        seeds = None
        for group, out in zip(groups, drawn, strict=True):
            runs_n, seeds_n = group[stratum].shape
            if seeds is None or not paired:
                seeds = rng.integers(seeds_n, size=(count, 1, seeds_n))
            runs = rng.integers(runs_n, size=(count, runs_n, 1))
            out.append(group[stratum][runs, seeds])
    return drawn


def _check_groups(groups: Sequence[Scores], paired: bool) -> None:
    strata = {len(group) for group in groups}
    if len(strata) != 1 or 0 in strata:
        raise ValueError(f"scores: groups have {sorted(strata)} strata; all must have the same number")
    for index, row in enumerate(zip(*groups, strict=True)):
        if any(s.ndim != 2 or s.size == 0 for s in row):
            raise ValueError(f"scores: stratum {index} must be a non-empty (num_runs, num_seeds) matrix")
        if paired and len({s.shape[1] for s in row}) != 1:
            raise ValueError(f"scores: stratum {index} has unequal numbers of seeds; pairs need the same")
