"""The fluid world of Distr-LB's Algorithm 1: by hand, and where the marginal reward is exact in it."""

from collections.abc import Callable

import numpy as np
import pytest

from steelyard.envs.errors import UserError
from steelyard.envs.fluid import FluidWorld
from steelyard.envs.rewards import marginal_vbf, reward

RATES = np.array([4.0, 4.0, 2.0, 1.0])
Policy = Callable[[np.ndarray, int], np.ndarray]
"""(backlog (M, N), agent) -> split (N,)."""


def on_own_backlog(backlog: np.ndarray, agent: int) -> np.ndarray:
    """Prefers servers on which the agent itself has little left."""
    share = RATES / (1 + backlog[agent])
    return share / share.sum()


def on_all_backlog(backlog: np.ndarray, agent: int) -> np.ndarray:
    """Prefers servers on which all agents together have little left."""
    share = RATES / (1 + backlog.sum(0))
    return share / share.sum()


def errors(shared: bool, policy: Policy, steps: int, samples: int = 20) -> tuple[np.ndarray, np.ndarray]:
    """|delta r - delta phi| of marginal_vbf and of vbf on the own share over `steps` steps, (samples,) each.

    Agent 0 deviates in one step, then all follow the policy.
    """
    found = []
    for k in range(samples):
        chance = np.random.default_rng(k)
        base = FluidWorld(RATES, 3, shared=shared)
        for _ in range(15):
            base.step(chance.gamma(2.0, 1.8, 3), [on_own_backlog(base.backlog, i) for i in range(3)])
        work, deviation = chance.gamma(2.0, 1.8, (steps, 3)), chance.dirichlet(np.ones(4))
        sums = []
        for world, first in ((base.clone(), None), (base.clone(), deviation)):
            total = np.zeros(3)
            for t in range(steps):
                split = np.array([policy(world.backlog, i) for i in range(3)])
                if t == 0 and first is not None:
                    split[0] = first
                loads = world.step(work[t], split)
                paid = marginal_vbf(loads[0], loads[1:].sum(0)), reward("vbf", loads[0])
                total += [*paid, reward("vbf", loads.sum(0))]
            sums.append(total)
        marginal, own, phi = sums[1] - sums[0]
        found.append((abs(marginal - phi), abs(own - phi)))
    columns = np.array(found).T
    return columns[0], columns[1]


def test_one_agent_by_hand():
    world = FluidWorld([2.0, 1.0], 1)
    np.testing.assert_allclose(world.step([6.0], [[0.5, 0.5]]), [[1.5, 3.0]])
    np.testing.assert_allclose(world.backlog, [[1.0, 2.0]])
    np.testing.assert_allclose(world.step([1.0], [[0.0, 1.0]]), [[0.5, 3.0]])
    np.testing.assert_allclose(world.backlog, [[0.0, 2.0]])


def test_a_shared_server_does_all_it_can_and_an_owned_one_wastes_idle_shares():
    owned, shared = FluidWorld([2.0], 2), FluidWorld([2.0], 2, shared=True)
    for world in (owned, shared):
        world.step([3.0, 0.0], [[1.0], [1.0]])
    assert owned.backlog.sum() == 2.0
    assert shared.backlog.sum() == 1.0


@pytest.mark.parametrize("steps", [1, 5, 25])
def test_marginal_is_exact_over_any_horizon_where_shares_are_owned(steps):
    marginal, own = errors(False, on_own_backlog, steps)
    assert marginal.max() < 1e-10
    assert own.mean() > 0.05


def test_marginal_is_not_exact_where_servers_are_shared_or_the_others_react():
    for shared, policy in ((True, on_own_backlog), (False, on_all_backlog)):
        assert errors(shared, policy, 1)[0].max() < 1e-10  # the stage still is
        assert errors(shared, policy, 25)[0].mean() > 1e-3


@pytest.mark.parametrize(
    ("rates", "agents", "word"), [([], 1, "rates"), ([1.0, 0.0], 1, "rates"), ([1.0], 0, "num_agents")]
)
def test_bad_worlds(rates, agents, word):
    with pytest.raises(UserError, match=word):
        FluidWorld(rates, agents)


@pytest.mark.parametrize(
    ("work", "split", "word"),
    [
        ([1.0], [[0.5, 0.5]] * 2, "work"),
        ([1.0, -1.0], [[0.5, 0.5]] * 2, "work"),
        ([1.0, 1.0], [[0.5, 0.5]], "split"),
        ([1.0, 1.0], [[0.5, 0.4]] * 2, "sum to 1"),
    ],
)
def test_bad_steps(work, split, word):
    with pytest.raises(UserError, match=word):
        FluidWorld([1.0, 1.0], 2).step(work, split)
