"""Every reward is the formula that its documentation states, on any vector."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard import native
from steelyard.envs.batch import LoadBalanceBatch
from steelyard.envs.errors import UserError
from steelyard.envs.rewards import MEASURES, REWARDS, marginal_vbf, reward
from steelyard.envs.scenario import Scenario

# The documented formulas once more, in numpy; they leave out the eps of the logarithms.
FORMULAS = {
    "vbf": lambda v: -v.var(),
    "log_vbf": lambda v: -np.log(v.var()),
    "vbf+log_vbf": lambda v: -v.var() - np.log(v.var()),
    "pbf": lambda v: np.prod(v / v.max()),
    "jain": lambda v: v.sum() ** 2 / (v.size * (v**2).sum()),
    "makespan": lambda v: -v.max(),
    "log_makespan": lambda v: -np.log(v.max()),
    "cv": lambda v: -v.std() / v.mean(),
}
loads = st.lists(st.floats(0.1, 10), min_size=2, max_size=8).map(np.array)


def test_documented_names_are_the_native_ones():
    assert set(native.reward_names()) == set(REWARDS)
    assert set(REWARDS) == {*FORMULAS, *(f"team_{name}" for name in FORMULAS), "marginal_vbf"}
    assert set(MEASURES) == {"durations", "true", "own"}


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("load", [[1.0, 2.0], [0.5, 0.25, 4.0], [3.0, 1.0, 1.0, 1.0, 9.0, 2.0]])
def test_formula(name, load):
    load = np.array(load)
    assert reward(name, load) == pytest.approx(FORMULAS[name](load), rel=1e-4)


@pytest.mark.parametrize("name", FORMULAS)
@given(load=loads)
def test_equal_load_is_best(name, load):
    best = reward(name, np.full_like(load, load.mean()))
    assert np.isfinite(best)
    assert reward(name, load) <= best + 1e-9 * (1 + abs(best))


@pytest.mark.parametrize("name", FORMULAS)
def test_an_idle_pool_is_finite(name):
    assert np.isfinite(reward(name, np.zeros(4)))


@pytest.mark.parametrize("name", FORMULAS)
@given(load=loads, seed=st.integers(0, 2**31))
def test_order_of_servers_does_not_matter(name, load, seed):
    shuffled = np.random.default_rng(seed).permutation(load)
    assert reward(name, shuffled) == pytest.approx(reward(name, load), rel=1e-6, abs=1e-9)


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10)), min_size=2, max_size=8))
def test_marginal_is_a_difference_of_the_team_reward(pairs):
    mine, others = np.array(pairs).T
    expected = reward("vbf", mine + others) - reward("vbf", others)
    assert marginal_vbf(mine, others) == pytest.approx(expected, abs=1e-6)
    covariance = np.cov(mine, others, bias=True)[0, 1]
    assert marginal_vbf(mine, others) == pytest.approx(-mine.var() - 2 * covariance, abs=1e-6)


def test_lemma_3_does_not_hold_for_the_own_share():
    """Moving l_i from (1, 0) to (0, 1) beside l_-i = (0, 1) changes F by -1, F_i by 0, marginal by -1."""
    others, before, after = np.array([0.0, 1.0]), np.array([1.0, 0.0]), np.array([0.0, 1.0])
    potential = reward("vbf", after + others) - reward("vbf", before + others)
    assert potential == pytest.approx(-1)
    assert reward("vbf", after) - reward("vbf", before) == pytest.approx(0)
    assert marginal_vbf(after, others) - marginal_vbf(before, others) == pytest.approx(potential)


def test_unknown_reward():
    with pytest.raises(UserError, match="did you mean 'vbf'"):
        reward("vbff", [1.0, 2.0])


@pytest.mark.parametrize("vector", [[], [[1.0, 2.0]], [float("nan"), 1.0]])
def test_bad_vectors(vector):
    with pytest.raises(UserError, match="finite loads"):
        reward("vbf", vector)


def played(kind: str, measure: str) -> tuple[LoadBalanceBatch, np.ndarray]:
    """A batch after 20 s of uneven actions, and the rewards of all its steps (T, B, M)."""
    batch = LoadBalanceBatch("cluster-a-cpu", 2, reward=kind, measure=measure)
    batch.reset(seeds=[5, 6])
    rng = np.random.default_rng(1)
    paid = []
    for _ in range(40):
        actions = rng.uniform(-1, 1, (2, 2, 8)).astype(np.float32)
        paid.append(batch.step(actions)[1].copy())
    return batch, np.array(paid)


@pytest.mark.parametrize("kind", REWARDS)
@pytest.mark.parametrize("measure", MEASURES)
def test_every_reward_in_the_game(kind, measure):
    if (kind == "marginal_vbf" and measure != "true") or (REWARDS[kind].team and measure == "own"):
        with pytest.raises(UserError, match=r"reward\.measure"):
            LoadBalanceBatch("cluster-a-cpu", 1, reward=kind, measure=measure)
        return
    _, paid = played(kind, measure)
    assert np.isfinite(paid).all()
    assert paid.std() > 0
    shared = (paid[..., 0] == paid[..., 1]).all()
    assert shared == (REWARDS[kind].team or (measure == "true" and kind != "marginal_vbf"))


@pytest.mark.parametrize("kind", FORMULAS)
def test_reward_of_durations_is_the_formula_over_the_observation(kind):
    batch, paid = played(kind, "durations")
    wdmean = batch.buffers.observations[:, :, 5 : 11 * 8 : 11]
    for world in range(2):
        for agent in range(2):
            expected = reward(kind, wdmean[world, agent].astype(np.float64))
            assert paid[-1, world, agent] == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_scenario_chooses_the_reward():
    scenario = Scenario.load("cluster-a-cpu", ["reward.kind=jain", "reward.measure=true"])
    batch = LoadBalanceBatch(scenario, 1)
    assert (batch.reward, batch.measure) == ("jain", "true")
    with pytest.raises(UserError, match="did you mean 'jain'"):
        LoadBalanceBatch(scenario, 1, reward="jane")
    with pytest.raises(UserError, match="measure"):
        LoadBalanceBatch(scenario, 1, measure="guess")
