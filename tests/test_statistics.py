"""trainers/statistics.py against rliable (Agarwal et al. 2021) and against theory."""

import numpy as np
import pytest

from steelyard.trainers import statistics as st


def scores_of(rng: np.random.Generator, runs: int, tasks: int) -> np.ndarray:
    return rng.gamma(2.0, size=(runs, tasks)) + np.arange(tasks)


def as_strata(matrix: np.ndarray) -> list[np.ndarray]:
    """rliable's (num_runs, num_tasks) as one (1, num_runs) stratum per task."""
    return [column[None, :].astype(float) for column in matrix.T]


@pytest.fixture(scope="module")
def rliable_metrics():
    return pytest.importorskip("rliable.metrics")


@pytest.fixture(scope="module")
def rliable_library():
    return pytest.importorskip("rliable.library")


@pytest.mark.parametrize(("runs", "tasks"), [(1, 1), (3, 1), (5, 4), (10, 7), (23, 3)])
def test_iqm_is_that_of_rliable(rliable_metrics, runs, tasks):
    matrix = scores_of(np.random.default_rng(runs), runs, tasks)
    assert st.iqm(as_strata(matrix)) == pytest.approx(rliable_metrics.aggregate_iqm(matrix), rel=1e-12)


def test_mean_is_that_of_rliable(rliable_metrics):
    matrix = scores_of(np.random.default_rng(2), 9, 4)
    assert st.mean(as_strata(matrix)) == pytest.approx(rliable_metrics.aggregate_mean(matrix), rel=1e-12)


@pytest.mark.parametrize("rounding", [None, 0])
def test_probability_of_improvement_is_that_of_rliable(rliable_metrics, rounding):
    """With ties too (rounding=0)."""
    rng = np.random.default_rng(3)
    x, y = scores_of(rng, 12, 5) + 0.3, scores_of(rng, 12, 5)
    if rounding is not None:
        x, y = np.round(x, rounding), np.round(y, rounding)
    expected = rliable_metrics.probability_of_improvement(x, y)
    assert st.probability_of_improvement(as_strata(x), as_strata(y)) == pytest.approx(expected, rel=1e-12)


def test_performance_profile_is_that_of_rliable(rliable_library):
    matrix = scores_of(np.random.default_rng(4), 11, 3)
    thresholds = np.linspace(0, 8, 33)
    expected = rliable_library.score_distributions(matrix, thresholds)
    assert np.allclose(st.performance_profile(as_strata(matrix), thresholds), expected, atol=1e-12)


def test_interval_agrees_with_rliable(rliable_library, rliable_metrics):
    """Both are Monte Carlo: quantiles of 4,000 replicates agree to a tenth of the interval's width."""
    matrix = scores_of(np.random.default_rng(5), 20, 4)
    _, interval = rliable_library.get_interval_estimates(
        {"x": matrix}, lambda m: np.array([rliable_metrics.aggregate_iqm(m)]), reps=4000
    )
    low, high = interval["x"][:, 0]
    ours = st.bootstrap(st.iqm, as_strata(matrix), replicates=4000)
    width = high - low
    assert abs(ours.low - low) < 0.1 * width
    assert abs(ours.high - high) < 0.1 * width


def test_interval_covers_the_mean_as_often_as_it_says():
    """Coverage of the 95 % interval of a mean of n = 40 normal scores, within 4 standard errors.

    The percentile interval of a bootstrap has normal width with n instead of n - 1 degrees of freedom, so its
    coverage is P(|t_39| < 1.96 sqrt(39/40)) = 0.939, not 0.95 (Efron and Tibshirani 1993, Sec. 14).
    """
    rng = np.random.default_rng(6)
    trials = 600
    hits = 0
    for trial in range(trials):
        estimate = st.bootstrap(st.mean, [rng.normal(size=(1, 40))], replicates=400, seed=trial)
        hits += estimate.low < 0 < estimate.high
    expected = 0.939
    assert abs(hits / trials - expected) < 4 * np.sqrt(expected * (1 - expected) / trials)


def test_pairing_removes_what_the_seeds_share():
    """With x = y + 0.1 and a large effect of the seed, the paired interval is a point, the other is wide."""
    effect = np.random.default_rng(7).normal(size=(1, 50))
    paired = st.bootstrap(st.difference, [effect + 0.1], [effect])
    unpaired = st.bootstrap(st.difference, [effect + 0.1], [effect], paired=False)
    assert paired.low == pytest.approx(0.1)
    assert paired.high == pytest.approx(0.1)
    assert unpaired.high - unpaired.low > 0.3


def test_training_runs_are_drawn_whole():
    """When all variance is between 5 runs, its interval does not shrink with the number of seeds."""
    between = np.random.default_rng(8).normal(size=(5, 1))
    narrow = st.bootstrap(st.mean, [np.repeat(between, 10, axis=1)])
    wide = st.bootstrap(st.mean, [np.repeat(between, 500, axis=1)])
    assert narrow.high - narrow.low == pytest.approx(wide.high - wide.low, rel=0.2)


def test_relative_iqm_of_a_scaled_policy():
    y = np.random.default_rng(9).gamma(3.0, size=(1, 64))
    estimate = st.bootstrap(st.relative_iqm, [0.9 * y], [y])
    assert (estimate.value, estimate.low, estimate.high) == pytest.approx((-0.1, -0.1, -0.1))


def test_profile_band_holds_the_profile():
    scores = [np.random.default_rng(10).gamma(2.0, size=(3, 30))]
    value, low, high = st.profile_band(scores, np.linspace(0, 6, 20))
    assert np.all((low <= value) & (value <= high))
    assert np.all(np.diff(value) <= 0)


def test_same_seed_same_interval():
    scores = [np.random.default_rng(11).normal(size=(2, 20))]
    assert st.bootstrap(st.iqm, scores, seed=4) == st.bootstrap(st.iqm, scores, seed=4)
    assert st.bootstrap(st.iqm, scores, seed=4) != st.bootstrap(st.iqm, scores, seed=5)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (([np.ones((1, 3))], [np.ones((1, 4))]), "unequal numbers of seeds"),
        (([np.ones((1, 3))], [np.ones((1, 3))] * 2), "must have the same number"),
        (([np.ones((0, 3))],), "non-empty"),
        (([np.ones(3)],), "non-empty"),
    ],
)
def test_bad_groups_are_named(groups, message):
    with pytest.raises(ValueError, match=message):
        st.bootstrap(lambda *g: st.mean(g[0]), *groups)
