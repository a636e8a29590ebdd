"""Demand distributions: moments, distribution functions, purity of draws, refusal of bad parameters."""

import math

import numpy as np
import pytest
import theory
from reference import draw
from scipy import stats
from worlds import STANDARD_ERRORS, distribution, standard_error

from steelyard import native
from steelyard.envs.scenario import Scenario

CASES = {
    "exponential": ([0.7], []),
    "deterministic": ([0.3], []),
    "uniform": ([0.2, 1.7], []),
    "lognormal": ([2.0, 0.8], []),
    "pareto": ([1.5, 6.0], []),
    "discrete": ([0.1, 1.0, 7.0], [0.7, 0.25, 0.05]),
    "hyperexponential": ([0.2, 3.0], [0.9, 0.1]),
    "lognormal_mixture": ([0.05, 0.3, 4.0, 0.1, 0.8, 0.3], [0.2, 0.7, 0.1]),
    "empirical": ([0.5, 0.5, 2.0, 9.0], []),
}


def draws(made: native.Distribution, count: int, stream: int = 5) -> np.ndarray:
    return np.array([made.sample(draw(stream, key)) for key in range(count)])


def cdf(kind: str, a: list[float], b: list[float]):
    """The distribution function, for the kinds that have a density."""
    match kind:
        case "exponential":
            return stats.expon(scale=a[0]).cdf
        case "uniform":
            return stats.uniform(a[0], a[1] - a[0]).cdf
        case "lognormal":
            return stats.lognorm(s=a[1], scale=a[0] * math.exp(-(a[1] ** 2) / 2)).cdf
        case "pareto":
            return stats.pareto(a[1], scale=a[0] * (a[1] - 1) / a[1]).cdf
        case "hyperexponential":
            return lambda x: sum(p * stats.expon(scale=mean).cdf(x) for mean, p in zip(a, b, strict=True))
        case "lognormal_mixture":
            types = list(zip(a[: len(b)], a[len(b) :], b, strict=True))
            return lambda x: sum(p * cdf("lognormal", [mean, sigma], [])(x) for mean, sigma, p in types)
    raise ValueError(kind)


@pytest.mark.parametrize("kind", CASES)
def test_moments(kind):
    a, b = CASES[kind]
    made = distribution(kind, a, b)
    samples = draws(made, 40_000)
    second = theory.second_moment_s2(kind, a, b)
    assert (samples > 0).all()
    for moment, expected in ((samples, made.mean()), (samples**2, second)):
        assert abs(moment.mean() - expected) <= STANDARD_ERRORS * standard_error(moment) + 1e-12


@pytest.mark.parametrize(
    "kind", ["exponential", "uniform", "lognormal", "pareto", "hyperexponential", "lognormal_mixture"]
)
@pytest.mark.parametrize("stream", [1, 2, 2**63])
def test_distribution_function(kind, stream):
    a, b = CASES[kind]
    samples = draws(distribution(kind, a, b), 10_000, stream)
    assert stats.kstest(samples, cdf(kind, a, b)).pvalue > 1e-4


@pytest.mark.parametrize("kind", ["discrete", "empirical"])
def test_values_come_as_often_as_they_should(kind):
    a, b = CASES[kind]
    samples = draws(distribution(kind, a, b), 10_000)
    values, counts = np.unique(samples, return_counts=True)
    weights = np.array(b or [1 / len(a)] * len(a))
    expected = np.array([weights[np.array(a) == value].sum() for value in values])
    np.testing.assert_array_equal(values, np.unique(a))
    assert stats.chisquare(counts, 10_000 * expected).pvalue > 1e-4


def test_neighbouring_draws_are_unrelated():
    samples = draws(distribution("exponential", [1.0]), 20_000)
    for lag in (1, 2, 8):
        correlation = np.corrcoef(samples[:-lag], samples[lag:])[0, 1]
        assert abs(correlation) < STANDARD_ERRORS / math.sqrt(len(samples))
    other = draws(distribution("exponential", [1.0]), 20_000, stream=6)
    assert abs(np.corrcoef(samples, other)[0, 1]) < STANDARD_ERRORS / math.sqrt(len(samples))


@pytest.mark.parametrize("kind", CASES)
def test_a_draw_belongs_to_its_word(kind):
    made, again = distribution(kind, *CASES[kind]), distribution(kind, *CASES[kind])
    words = [0, 1, 2**63, 2**64 - 1, 0x123456789ABCDEF0]
    values = [made.sample(word) for word in words]
    assert values == [again.sample(word) for word in reversed(words)][::-1]
    assert all(math.isfinite(value) and value > 0 for value in values)


def test_extreme_words_stay_in_the_support():
    low, high = (distribution("uniform", [0.0, 1.0]).sample(word) for word in (0, 2**64 - 1))
    assert 0 < low < 1e-15
    assert 1 - 1e-15 < high < 1
    assert 30 < distribution("exponential", [1.0]).sample(0) < 40
    assert distribution("discrete", [1.0, 2.0], [1.0, 0.0]).sample(2**64 - 1) == 1.0


BAD = [
    ("exponential", [], [], "0 parameters"),
    ("exponential", [0.0], [], "mean_s = 0"),
    ("exponential", [float("nan")], [], "mean_s = nan"),
    ("deterministic", [-1.0], [], "not allowed"),
    ("uniform", [2.0, 1.0], [], "low_s < high_s"),
    ("uniform", [0.0, float("inf")], [], "low_s < high_s"),
    ("lognormal", [1.0], [], "1 parameters"),
    ("lognormal", [1.0, 0.0], [], "sigma"),
    ("pareto", [1.0, 1.0], [], "alpha > 1"),
    ("discrete", [1.0, 2.0], [1.0], "one probability per value"),
    ("discrete", [1.0, 2.0], [0.5, 0.4], "must sum to 1"),
    ("discrete", [1.0, 2.0], [1.5, -0.5], r"not in \[0, 1\]"),
    ("hyperexponential", [], [], "one probability per value"),
    ("hyperexponential", [1.0, float("inf")], [0.5, 0.5], "not allowed"),
    ("lognormal_mixture", [1.0, 2.0, 0.5], [0.5, 0.5], "a mean_s and a sigma per probability"),
    ("lognormal_mixture", [1.0, 2.0, 0.5, 0.0], [0.5, 0.5], "sigma = 0"),
    ("lognormal_mixture", [1.0, 2.0, 0.5, 0.5], [0.5, 0.6], "must sum to 1"),
    ("empirical", [], [], "at least one sample"),
    ("empirical", [1.0, -1.0], [], "not allowed"),
]


@pytest.mark.parametrize(("kind", "a", "b", "message"), BAD)
def test_bad_parameters_are_named(kind, a, b, message):
    made = native.Distribution()
    made.kind, made.a, made.b = kind, a, b
    with pytest.raises(ValueError, match=message) as refusal:
        made.prepare("workload.stages[0].demand")
    assert str(refusal.value).startswith("workload.stages[0].demand: ")
    assert "\n" not in str(refusal.value)


def test_elephants_are_those_of_the_thesis():
    """Sec. 5.4.3: three lognormals of ln iterations, 20,000, 100,000 and 10,000 queries, mean 893,035."""
    demand = Scenario.load("cluster-elephants").workload.stages[0].demand
    iterations = [math.exp(mu + sigma**2 / 2) for mu, sigma in ((10.5, 0.1), (12, 0.8), (16, 0.3))]
    assert demand.sigmas == (0.1, 0.8, 0.3)
    assert demand.means_s == pytest.approx([each / 893035.051 for each in iterations], rel=1e-5)
    assert demand.probabilities == pytest.approx([2 / 13, 10 / 13, 1 / 13])
    assert demand.mean() == pytest.approx(1, rel=1e-5)


def test_unknown_kind():
    with pytest.raises(ValueError, match='"gamma" is not known; use one of exponential'):
        native.Distribution().kind = "gamma"
