"""Changes of a world whose effect is known without knowing the answer."""

import math

import numpy as np
import pytest
from worlds import cluster, distribution, event, exponential, lognormal, rule, server, stage, standard_error

from steelyard import native

POOL = [server(2), server(1, 1.5), server(2, 0.75, "ps", 3), server(1, 1.0, "ps")]
WEIGHTS = [2.0, 1.5, 1.5, 1.0]
LOCAL_RULES = [
    "ecmp",
    "wcmp",
    "awcmp",
    "lsq",
    "lsq2",
    "gsq",
    "sed",
    "sed2",
    "hlb",
    "rr",
    "maglev",
    "oracle_srt",
]


def world_in_units_of(unit_s: float) -> native.ClusterConfig:
    """One world, its clock ticking `unit_s` times slower."""
    stages = [stage("cpu", exponential(0.7 * unit_s)), stage("io", lognormal(0.3 * unit_s, 0.8))]
    drop = event("speed", 20.0 * unit_s, value=0.5, targets=[0], duration_s=10.0 * unit_s)
    return cluster(
        POOL, 5.0 / unit_s, stages, num_load_balancers=2, horizon_s=100.0 * unit_s, warmup_s=5.0 * unit_s,
        step_s=0.5 * unit_s, hop_low_s=1e-3 * unit_s, hop_high_s=1e-2 * unit_s, features=True, events=[drop],
        admission_limit=30, reject_sojourn_s=40.0 * unit_s,
    )  # fmt: skip


def episode(config: native.ClusterConfig, name: str, seed: int = 1, weights=WEIGHTS, **fields) -> dict:
    by = rule(name, **fields)
    by.weights = list(weights) if by.uses_weights else []
    return native.simulate(config, by, [seed], details=True)[0]


@pytest.mark.parametrize("unit_s", [0.01, 2.0, 30.0])
@pytest.mark.parametrize("name", LOCAL_RULES)
def test_time_has_no_unit(name, unit_s):
    """All rates divided and all times multiplied by one number: the same decisions, longer sojourns."""
    interval = {"interval_s": 0.5} if name == "awcmp" else {}
    scaled = {"interval_s": 0.5 * unit_s} if name == "awcmp" else {}
    one, other = (
        episode(world_in_units_of(1.0), name, **interval),
        episode(world_in_units_of(unit_s), name, **scaled),
    )
    assert one["digest"] == other["digest"]
    for key in ("arrival_s", "sojourn_s"):
        np.testing.assert_allclose(other[key], one[key] * unit_s, rtol=1e-4, atol=1e-5 * unit_s)
    assert other["jain_mean"] == pytest.approx(one["jain_mean"])


def paired(config: native.ClusterConfig, other: native.ClusterConfig, one_rule, other_rule) -> np.ndarray:
    """(R,) differences of the mean sojourn, relative to its size."""
    seeds = list(range(48))
    a = np.array([e["sojourn_mean_s"] for e in native.simulate(config, one_rule, seeds)])
    b = np.array([e["sojourn_mean_s"] for e in native.simulate(other, other_rule, seeds)])
    return (a - b) / a.mean()


@pytest.mark.parametrize(
    "name", ["wcmp", "lsq", "sed", "sed2", "gsq", "hlb", "awcmp", "oracle", "charon_wsapp"]
)
def test_servers_have_no_order(name):
    """Weights without ties: a tie goes to the next server in a rotation, so neighbours matter."""
    order = [2, 0, 3, 1]
    weights = [w * (1 + 0.0137 * j) for j, w in enumerate(WEIGHTS)]
    configs = [
        cluster(
            pool, 4.6, num_load_balancers=2, horizon_s=200.0, warmup_s=10.0, step_s=0.5, features=True,
            hop_low_s=1e-3, hop_high_s=1e-2,
        )
        for pool in (POOL, [POOL[j] for j in order])
    ]  # fmt: skip
    rules = [rule(name), rule(name)]
    if rules[0].uses_weights:
        rules[0].weights, rules[1].weights = weights, [weights[j] for j in order]
    differences = paired(*configs, *rules)
    assert standard_error(differences) < 0.04
    assert abs(differences.mean()) <= 4 * standard_error(differences)


@pytest.mark.parametrize("name", ["ecmp", "wcmp", "maglev", "gsq", "gsq2", "oracle", "oracle_srt"])
@pytest.mark.parametrize("balancers", [2, 7])
def test_splitting_a_balancer_is_no_change_to_rules_without_memory(name, balancers):
    """Hashing and exact global knowledge do not ask through whom a flow came: the same decisions."""
    digests = set()
    for m in (1, balancers):
        config = cluster(POOL, 3.0, num_load_balancers=m, horizon_s=50.0)
        digests.add(episode(config, name)["digest"])
    assert len(digests) == 1


def test_splitting_a_balancer_costs_rules_that_count():
    """Each of M balancers sees 1/M of the flows: lsq gets worse, with very many nears a uniform choice."""
    means = []
    for m in (1, 2, 8, 512):
        config = cluster([server()] * 4, 3.2, num_load_balancers=m, horizon_s=20_000.0)
        means.append(episode(config, "lsq")["sojourn_mean_s"])
    assert means[0] < means[1] < means[2] < means[3]
    config = cluster([server()] * 4, 3.2, num_load_balancers=512, horizon_s=20_000.0)
    assert means[3] == pytest.approx(episode(config, "ecmp")["sojourn_mean_s"], rel=0.15)


@pytest.mark.parametrize("factor", [2**-3, 0.1, 3.0, 7.3, 2**10])
@pytest.mark.parametrize("name", ["sed", "sed2", "wcmp"])
def test_only_ratios_of_weights_count(name, factor):
    weights = np.array([2.0, 1.0, 4.0, 1.0])
    config = cluster(POOL, 4.0, num_load_balancers=2, horizon_s=100.0)
    one, other = episode(config, name, weights=weights), episode(config, name, weights=weights * factor)
    if math.log2(factor).is_integer():
        assert one["digest"] == other["digest"]
    else:  # a rounded weight may break a tie the other way
        assert other["sojourn_mean_s"] == pytest.approx(one["sojourn_mean_s"], rel=0.15)


@pytest.mark.parametrize("weight", [1.0, 0.25, 17.3])
@pytest.mark.parametrize(("weighted", "plain"), [("sed", "lsq"), ("sed2", "lsq2"), ("policy", "lsq")])
def test_equal_weights_are_no_weights(weighted, plain, weight):
    config = cluster(POOL, 4.0, num_load_balancers=2, horizon_s=100.0)
    assert episode(config, weighted, weights=[weight] * 4)["digest"] == episode(config, plain)["digest"]


def test_equal_actions_are_no_weights():
    config = cluster(POOL, 4.0, num_load_balancers=2, horizon_s=100.0, step_s=0.5)
    world, plain = native.World(config, rule("policy"), 1), native.World(config, rule("lsq"), 1)
    rng = np.random.default_rng(1)
    for step in range(200):
        for agent in range(2):
            world.act(agent, np.full(4, rng.uniform(-1, 1), np.float32))
        world.run_until(0.5 * (step + 1))
    plain.run_until(100.0)
    assert world.digest == plain.digest


def test_configured_weights_are_an_action():
    """A policy that always sets a_j = log2(w_j) / 2 is sed with weights w."""
    config = cluster(POOL, 4.0, num_load_balancers=2, horizon_s=100.0)
    weights = np.array([4.0, 1.0, 2.0, 0.5])
    world = native.World(config, rule("policy"), 1)
    for agent in range(2):
        world.act(agent, (np.log2(weights) / 2).astype(np.float32))
    world.run_until(100.0)
    fixed = native.World(config, rule("sed", weights), 1)
    fixed.run_until(100.0)
    assert world.digest == fixed.digest


def test_all_balancers_of_one_are_global():
    """One balancer without latency counts every flow: lsq = gsq, lsq2 = gsq2, decision by decision."""
    config = cluster(POOL, 4.0, horizon_s=100.0)
    assert episode(config, "lsq")["digest"] == episode(config, "gsq")["digest"]
    assert episode(config, "lsq2")["digest"] == episode(config, "gsq2")["digest"]


def test_latency_adds_two_hops_to_an_idle_server():
    """SYN to the server and reply to the client, each a hop and a node; all within their stated ranges."""
    config = cluster(
        [server(1000)] * 2, 50.0, [stage("cpu", distribution("deterministic", [0.5]))], horizon_s=400.0,
        hop_low_s=1e-3, hop_high_s=5e-3, node_low_s=1e-4, node_high_s=3e-4,
    )  # fmt: skip
    added_s = episode(config, "ecmp")["sojourn_s"].astype(float) - 0.5
    assert added_s.min() > 2 * (1e-3 + 1e-4) - 1e-6
    assert added_s.max() < 2 * (5e-3 + 3e-4) + 1e-6
    assert abs(added_s.mean() - 2 * (3e-3 + 2e-4)) < 4 * standard_error(added_s)
    variance = 2 * ((4e-3) ** 2 + (2e-4) ** 2) / 12
    assert added_s.var() == pytest.approx(variance, rel=0.05)


def test_more_capacity_never_hurts_a_single_server():
    """FIFO: the k-th departure of the same stream comes no later with more speed or more workers."""
    stages = [stage("cpu", lognormal(1.0, 1.0))]
    base, faster, wider = (
        episode(cluster([s], 1.5, stages, horizon_s=500.0), "ecmp")
        for s in (server(2), server(2, 1.3), server(3))
    )
    leave = [np.sort(e["arrival_s"] + e["sojourn_s"]) for e in (base, faster, wider)]
    assert (leave[1] <= leave[0] + 1e-3).all()
    assert (leave[2] <= leave[0] + 1e-3).all()
