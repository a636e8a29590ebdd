"""Every rule decides as its definition says: against the Python world, flow by flow, and by its own laws."""

import numpy as np
import pytest
from reference import ReferenceWorld, Server, mix64, two_below, weight_q16
from scipy import stats
from worlds import cluster, deterministic, event, exponential, rule, server, stage

from steelyard import native

STAGES = {
    "cpu": [stage("cpu", exponential())],
    "cpu-io": [stage("cpu", exponential(0.6)), stage("io", exponential(0.2))],
    "cpu-io-cpu": [
        stage("cpu", exponential(0.3)),
        stage("io", exponential(0.2)),
        stage("cpu", exponential(0.4)),
    ],
}
POOLS = {
    "fifo": [server(2, 1.5), server(1), server(1, 0.75), server(2)],
    "ps": [server(2, 1.5, "ps"), server(1, 1, "ps", 3), server(1, 0.75, "ps"), server(2, 1, "ps", 2)],
}
CAPACITY = [3.0, 1.0, 0.75, 2.0]
REFERENCED = [
    "ecmp", "rr", "lsq", "lsq2", "gsq", "gsq2", "sed", "sed2",
    "charon_sapp", "least_load_noise", "oracle_srt",
]  # fmt: skip


def small_world(pool: str, stages: str, rate: float) -> native.ClusterConfig:
    """Four unlike servers (6.75 of work a second) and two balancers."""
    return cluster(POOLS[pool], rate, STAGES[stages], num_load_balancers=2, horizon_s=70.0)


@pytest.mark.parametrize("stages", STAGES)
@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("name", REFERENCED)
def test_decisions_and_sojourns_are_those_of_the_python_world(name, pool, stages):
    rate = 2.4 if name in ("ecmp", "rr") else 4.2  # of equal shares the slowest server gets too much
    config = small_world(pool, stages, rate)
    by = rule(name, CAPACITY if native.RuleConfig(name).uses_weights else [])
    reference = ReferenceWorld(config, by, seed=1)
    reference.run()
    world = native.World(config, by, 1)
    world.run_until(config.horizon_s)
    assert world.digest == reference.digest
    (episode,) = native.simulate(config, by, [1], details=True)
    expected = sorted(reference.done.values())
    np.testing.assert_allclose(np.sort(episode["sojourn_s"]), expected, rtol=1e-6, atol=1e-6)


class Follower(ReferenceWorld):
    """The Python world that takes every decision from a native one, after checking that it costs least."""

    def __init__(self, config: native.ClusterConfig, by: native.RuleConfig, seed: int) -> None:
        super().__init__(config, by, seed)
        self.world = native.World(config, by, seed)
        self.costly = 0

    def choose(self, balancer, flow_hash, job):
        before = [server.count() for server in self.servers]
        self.world.run_until(self.clock + 2e-9)
        (chosen,) = np.flatnonzero(np.array(self.world.state()["in_system"]) - before)
        pair = self.name == "oracle2"
        candidates = two_below(mix64(flow_hash), self.n) if pair else range(self.n)
        assert chosen in candidates
        costs = {j: Server.completion_of(self.servers[j], job) for j in candidates}
        assert costs[chosen] <= min(costs.values()) + 2e-9
        self.costly += costs[chosen] > 1.01 * sum(job.demands)
        return int(chosen)


@pytest.mark.parametrize("stages", STAGES)
@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("name", ["oracle", "oracle2"])
def test_oracle_completes_the_new_flow_earliest(name, pool, stages):
    follower = Follower(small_world(pool, stages, 5.4), rule(name), seed=2)
    follower.run()
    assert follower.costly > 20  # flows that had to share or wait: the case where the oracle must think


@pytest.mark.parametrize("seed", [1, 2])
def test_policy_is_sed_with_the_weights_of_the_actions(seed):
    config = small_world("fifo", "cpu", 5.4)
    rng = np.random.default_rng(seed)
    actions = rng.choice([-1.0, -0.5, 0.0, 0.5, 1.0], (100, 2, 4)).astype(np.float32)
    reference = ReferenceWorld(config, rule("policy"), seed)
    world = native.World(config, rule("policy"), seed)
    reference.weights_at = lambda clock, balancer: [
        weight_q16(2.0 ** (2 * a)) for a in actions[min(99, int(clock / config.step_s)), balancer]
    ]
    reference.run()
    for step, joint in enumerate(actions):
        for agent in range(2):
            world.act(agent, joint[agent])
        world.run_until((step + 1) * config.step_s)
    assert world.digest == reference.digest


def flows_per_server(name, weights=(), flows=20_000, **fields) -> np.ndarray:
    """(N,) flows that a rule sent to each of 8 servers while none completed."""
    pool = fields.pop("pool", [server()] * 8)
    fields = {"flow_table_ways": 64, **fields}  # no bucket is ever full
    config = cluster(pool, 100.0, [stage("cpu", deterministic(1e6))], horizon_s=flows / 100.0, **fields)
    world = native.World(config, rule(name, weights), 5)
    world.run_until(config.horizon_s)
    return np.array(world.state()["in_system"])


def chi_square_p(counts: np.ndarray, shares: np.ndarray) -> float:
    return float(stats.chisquare(counts, counts.sum() * shares / shares.sum()).pvalue)


@pytest.mark.parametrize("balancers", [1, 3])
def test_hashing_rules_spread_in_proportion(balancers):
    weights = np.array([4.0, 1.0, 2.5, 1.0, 0.3, 4.0, 7.0, 1.0])
    equal = np.ones(8)
    options = {"num_load_balancers": balancers}
    assert chi_square_p(flows_per_server("ecmp", **options), equal) > 1e-4
    assert chi_square_p(flows_per_server("maglev", **options), equal) > 1e-4
    assert chi_square_p(flows_per_server("wcmp", **options), equal) > 1e-4
    assert chi_square_p(flows_per_server("wcmp", weights, **options), weights) > 1e-4


def test_rules_that_count_spread_evenly():
    assert np.ptp(flows_per_server("rr")) <= 1
    assert np.ptp(flows_per_server("gsq", num_load_balancers=3)) <= 1
    assert np.ptp(flows_per_server("lsq")) <= 1
    assert np.ptp(flows_per_server("lsq", num_load_balancers=3)) <= 3
    weights = np.array([4.0, 1.0, 2.5, 1.0, 0.3, 4.0, 7.0, 1.0])
    counts = flows_per_server("sed", weights)
    assert np.ptp((counts + 0.5) / weights) <= 1 / weights.min()


def test_two_choices_beat_one_and_lose_to_all():
    """The gap from the fullest to the mean: ln n / ln ln n, ln ln n / ln 2, below 1 (Mitzenmacher 2001)."""
    pool = [server()] * 64
    one, two, all_of_them = (
        flows_per_server(name, flows=4096, pool=pool) for name in ("ecmp", "gsq2", "gsq")
    )
    gaps = [counts.max() - counts.mean() for counts in (one, two, all_of_them)]
    assert gaps[0] > 2 * gaps[1] > 2 * gaps[2]
    assert gaps[1] < 5


def test_maglev_keeps_its_flows_when_a_server_leaves():
    """Eisenbud et al., Sec. 3.4: what was the leaver's is spread over the others, the rest hardly moves."""
    flows, fields = 20_000, {"num_load_balancers": 1}
    before = flows_per_server("maglev", flows=flows, **fields)
    after = flows_per_server("maglev", flows=flows, events=[event("leave", 0.0, targets=[3])], **fields)
    assert after[3] == 0
    assert after.sum() == before.sum()
    gained = np.delete(after - before, 3)
    assert chi_square_p(gained, np.ones(7)) > 1e-4
    assert gained.sum() == before[3]


def test_awcmp_divides_the_configured_weights_by_the_probed_occupancy():
    """Seed 004 Sec. 6.4.3; a probe every second step."""
    config = cluster(POOLS["fifo"], 4.5, horizon_s=60.0, step_s=0.5, num_load_balancers=2)
    world = native.World(config, rule("awcmp", CAPACITY, interval_s=1.0), 3)
    probed = np.zeros(4)
    for step in range(120):
        world.run_until(0.5 * step)
        state = world.state()
        if step % 2 == 0:
            probed = np.array(state["in_system"])
        for weights in state["weights"]:
            np.testing.assert_allclose(weights, np.array(CAPACITY) / (probed + 1), atol=2**-16)
    assert probed.max() > 0


def test_awcmp_sends_more_where_there_is_room():
    world = [server(4), server(1)]
    config = cluster(world, 4.0, horizon_s=2000.0, step_s=0.5)
    probing, blind = (
        native.simulate(config, rule(name), [1])[0]["sojourn_mean_s"] for name in ("awcmp", "ecmp")
    )
    assert probing < blind / 5


def kalman(mean: np.ndarray, std: np.ndarray, filters: np.ndarray) -> np.ndarray:
    """One HLB step (seed 004 Sec. 6.3) in doubles. filters: (N, 3) of mu, P, R; returns weights (N,)."""
    seen = mean > 0
    if seen.any():
        scale = mean[seen].mean()
        mu, p, r = filters[seen].T
        r = 0.99 * r + 0.01 * (std[seen] / scale) ** 2
        gain = p / (p + r)
        filters[seen] = np.stack([mu + gain * (mean[seen] / scale - mu), (1 - gain) * p, r], axis=1)
    weights = np.exp(-filters[:, 0])
    return weights / weights.sum() * len(weights)


@pytest.mark.parametrize("name", ["hlb", "hlb2"])
def test_hlb_weights_are_those_of_the_kalman_filters(name):
    config = cluster(POOLS["fifo"], 4.5, horizon_s=60.0, step_s=0.5, num_load_balancers=2, features=True)
    world = native.World(config, rule(name), 3)
    filters = np.tile([0.5, 1.0, 0.5], (2, 4, 1))
    for step in range(120):
        world.run_until(0.5 * step)
        weights = world.state()["weights"]
        for agent, observation in enumerate(world.observe_all()):
            durations = observation[:44].reshape(4, 11)[:, 1:6].astype(float)
            expected = kalman(durations[:, 0], durations[:, 2], filters[agent])
            np.testing.assert_allclose(weights[agent], expected, rtol=1e-4)
    assert weights[0][0] > weights[0][2]  # the slowest server has the least weight


def test_noise_costs_what_it_hides():
    """Least load with noise of 0, 4 and 4000 flows: from gsq to a uniform choice."""
    config = cluster([server()] * 4, 3.2, horizon_s=20_000.0)
    sojourn = [
        native.simulate(config, rule("least_load_noise", noise=noise), [1])[0]["sojourn_mean_s"]
        for noise in (0.0, 4.0, 4000.0)
    ]
    exact, uniform = (
        native.simulate(config, rule(name), [1])[0]["sojourn_mean_s"] for name in ("gsq", "ecmp")
    )
    assert sojourn[0] == exact
    assert sojourn[0] < sojourn[1] < sojourn[2]
    assert sojourn[2] == pytest.approx(uniform, rel=0.1)


def test_charon_comes_close_to_two_choices_with_exact_knowledge():
    """Seed 004 Sec. 4.4.2: 64 servers of which half have twice the capacity, 64.5 % load, 4 runs."""
    pool = [server(2)] * 32 + [server(1)] * 32
    config = cluster(
        pool, 123.84, [stage("cpu", exponential(0.5))], num_load_balancers=2, horizon_s=150.0, step_s=0.5,
        hop_low_s=1e-4, hop_high_s=1e-3, features=True,
    )  # fmt: skip
    sojourn, jain = {}, {}
    for name in ("gsq2", "charon_wsapp", "charon_sapp", "wcmp", "ecmp"):
        weights = [2.0] * 32 + [1.0] * 32 if native.RuleConfig(name).uses_weights else []
        episodes = native.simulate(config, rule(name, weights), [1, 2, 3, 4])
        sojourn[name] = np.mean([episode["sojourn_mean_s"] for episode in episodes])
        jain[name] = np.mean([episode["jain_mean"] for episode in episodes])
    assert (
        sojourn["gsq2"] < sojourn["charon_wsapp"] < sojourn["charon_sapp"] < sojourn["wcmp"] < sojourn["ecmp"]
    )
    assert jain["gsq2"] > jain["charon_wsapp"] > jain["charon_sapp"] > jain["wcmp"] > jain["ecmp"]
    assert jain["charon_sapp"] > jain["gsq2"] - 0.1


def test_unknown_rule_and_bad_parameters_are_named():
    with pytest.raises(ValueError, match='rule: "sedd" is not known'):
        native.RuleConfig("sedd")
    config = cluster([server()] * 3, 1.0, horizon_s=1.0)
    for bad, message in [
        (rule("sed", [1.0, 2.0]), "rule.weights: 2 given"),
        (rule("sed", [1.0, 0.0, 1.0]), r"rule.weights\[1\]"),
        (rule("sed", [1.0, float("nan"), 1.0]), r"rule.weights\[1\]"),
        (rule("awcmp", interval_s=-1.0), "rule.interval_s"),
        (rule("least_load_noise", noise=float("inf")), "rule.noise"),
    ]:
        with pytest.raises(ValueError, match=message):
            native.simulate(config, bad, [1])
