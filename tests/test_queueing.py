"""The simulator against exact queueing theory: |x - formula| below four standard errors (theory.py).

Worlds have no latency and no admission limit; means are over independent episodes, each after a warm-up of a
twentieth of its length.
"""

import numpy as np
import pytest
import theory
from worlds import (
    assert_mean,
    cluster,
    deterministic,
    distribution,
    exponential,
    hyperexponential,
    lognormal,
    replications,
    rule,
    server,
    stage,
)

from steelyard import native

SEEDS = range(32)
DEMANDS = {  # all of mean 1 s
    "exponential": exponential(),
    "deterministic": deterministic(),
    "uniform": distribution("uniform", [0.2, 1.8]),
    "lognormal": lognormal(1.0, 1.0),
    "hyperexponential": hyperexponential([0.25, 2.5], [2 / 3, 1 / 3]),
    "pareto": distribution("pareto", [1.0, 4.5]),
    "bimodal": distribution("discrete", [0.5, 5.5], [0.9, 0.1]),
}


def world(servers, rate, stages=None, flows=12_000, **fields) -> native.ClusterConfig:
    """A world in which `flows` flows arrive per episode."""
    horizon_s = flows / rate
    return cluster(servers, rate, stages, horizon_s=horizon_s, warmup_s=horizon_s / 20, **fields)


def means(config, by="ecmp", weights=(), key="sojourn_mean_s", seeds=SEEDS) -> np.ndarray:
    return replications(config, rule(by, weights), seeds, key)


@pytest.mark.parametrize("speed", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("load", [0.3, 0.8])
def test_mm1(load, speed):
    config = world([server(1, speed)], load * speed)
    assert_mean(means(config), theory.mm1_sojourn_s(load * speed, speed))


def test_mm1_heavy_load():
    assert_mean(means(world([server()], 0.9, flows=50_000)), theory.mm1_sojourn_s(0.9, 1.0))


@pytest.mark.parametrize("percent", [50, 90, 95, 99, 99.9])
def test_mm1_percentiles(percent):
    key = f"sojourn_p{percent:g}_s".replace(".", "")
    expected = theory.mm1_sojourn_quantile_s(0.7, 1.0, percent / 100)
    assert_mean(means(world([server()], 0.7, flows=20_000), key=key), expected, precision=0.04)


@pytest.mark.parametrize(("workers", "load"), [(2, 0.8), (4, 0.5), (8, 0.9), (32, 0.9)])
def test_mmc(workers, load):
    config = world([server(workers)], workers * load)
    assert_mean(means(config), theory.mmc_sojourn_s(workers * load, 1.0, workers))
    assert_mean(
        means(config, key="waiting_mean_s"), theory.mmc_waiting_s(workers * load, 1.0, workers), precision=0.1
    )


@pytest.mark.parametrize("kind", DEMANDS)
def test_mg1(kind):
    demand = DEMANDS[kind]
    assert demand.mean() == pytest.approx(1.0)
    waiting_s = theory.mg1_waiting_s(0.6, 1.0, theory.second_moment_s2(demand.kind, demand.a, demand.b))
    config = world([server()], 0.6, [stage("cpu", demand)])
    assert_mean(means(config, key="waiting_mean_s"), waiting_s, precision=0.05)
    assert_mean(means(config), waiting_s + 1.0)


@pytest.mark.parametrize("kind", DEMANDS)
def test_mg1_processor_sharing_is_insensitive(kind):
    config = world([server()], 0.7, [stage("io", DEMANDS[kind])])
    assert_mean(means(config), theory.mg1_ps_sojourn_s(0.7, 1.0))


@pytest.mark.parametrize("kind", DEMANDS)
def test_mg1_processor_sharing_has_a_fair_slowdown(kind):
    """E[T(x)] = x / (1 - rho), so that the mean slowdown is 1 / (1 - rho) (Kleinrock vol. 2, eq. 4.17)."""
    config = world([server()], 0.7, [stage("io", DEMANDS[kind])])
    assert_mean(means(config, key="slowdown_mean"), 1 / (1 - 0.7))


@pytest.mark.parametrize("ps_cap", [0, 3, 5])
def test_blocked_processor_sharing_with_exponential_demands(ps_cap):
    """Seed 002 eq. (42): min(n, p) processors work whatever the cap, so the count is the M/M/p chain."""
    config = world([server(3, 1.0, "ps", ps_cap)], 2.4)
    assert_mean(means(config), theory.mmc_sojourn_s(2.4, 1.0, 3))


@pytest.mark.parametrize("kind", DEMANDS)
def test_shared_processors_are_insensitive(kind):
    """No cap: generalised processor sharing has the M/M/p mean for any demand (Cohen, Acta Inf. 1979)."""
    config = world([server(3, 1.0, "ps")], 2.4, [stage("cpu", DEMANDS[kind])], flows=20_000)
    assert_mean(means(config), theory.mmc_sojourn_s(2.4, 1.0, 3))


@pytest.mark.parametrize("kind", DEMANDS)
def test_a_cap_of_p_is_fifo_over_p_workers(kind):
    """Seed 002 eq. (42) with p_hat = p, flow by flow."""
    stages = [stage("cpu", DEMANDS[kind])]
    by_cap, fifo = (
        native.simulate(world([pool], 2.4, stages, flows=2000), rule("ecmp"), [1], details=True)[0]
        for pool in (server(3, 1.0, "ps", 3), server(3))
    )
    np.testing.assert_array_equal(by_cap["sojourn_s"], fifo["sojourn_s"])


def test_a_cap_above_p_only_shares():
    """With deterministic demands, more sharing is worse than FIFO and the cap lies between (same flows)."""
    sojourns = [
        means(
            world([server(3, 1.0, "ps", cap)], 2.55, [stage("cpu", deterministic())]), seeds=range(4)
        ).mean()
        for cap in (3, 6, 0)
    ]
    assert sojourns[0] < sojourns[1] < sojourns[2]


@pytest.mark.parametrize("io", ["exponential", "deterministic", "hyperexponential"])
def test_cpu_then_io_has_product_form(io):
    """M/M/c FIFO, then M/G/1-PS fed by its Poisson departures (BCMP)."""
    demand = DEMANDS[io]
    config = world([server(2)], 0.75, [stage("cpu", exponential(2.0)), stage("io", demand)])
    expected = theory.mmc_sojourn_s(0.75, 2.0, 2) + theory.mg1_ps_sojourn_s(0.75, 1.0)
    assert_mean(means(config), expected)


def test_cpu_io_cpu_has_product_form():
    """Both visits to the CPU see M/M/c at twice the rate (BCMP: one exponential mean per FIFO centre)."""
    config = world(
        [server(3)],
        0.8,
        [stage("cpu", exponential(1.5)), stage("io", exponential(1.0)), stage("cpu", exponential(1.5))],
    )
    expected = 2 * theory.mmc_sojourn_s(1.6, 1.5, 3) + theory.mg1_ps_sojourn_s(0.8, 1.0)
    assert_mean(means(config), expected)


def test_hashing_splits_a_poisson_stream():
    """Every server of ecmp, and of wcmp by its weight, is an M/M/1 queue, whatever the balancers."""
    config = world([server()] * 4, 3.0, num_load_balancers=3)
    assert_mean(means(config), theory.mm1_sojourn_s(0.75, 1.0))
    weights = [4.0, 2.0, 1.0, 1.0]
    config = world([server(1, w) for w in weights], 6.0, num_load_balancers=2)
    expected = sum(w / 8 * theory.mm1_sojourn_s(6.0 * w / 8, w) for w in weights)
    assert_mean(means(config, "wcmp", weights), expected)


@pytest.mark.parametrize("servers", [2, 4])
def test_round_robin_gives_erlang_arrivals(servers):
    expected = theory.erlang_arrivals_m1_sojourn_s(servers, 0.8, 1.0)
    assert_mean(means(world([server()] * servers, 0.8 * servers), "rr"), expected)


@pytest.mark.parametrize(
    ("servers", "load", "room"), [(2, 0.5, 16), (2, 0.8, 40), (3, 0.5, 12), (3, 0.8, 30)]
)
def test_join_the_shortest_queue(servers, load, room):
    expected = theory.shortest_queue_sojourn_s(servers, load, servers, room)
    config = world([server()] * servers, load * servers, flows=int(6000 / (1 - load)))
    assert_mean(means(config, "gsq"), expected)
    assert_mean(means(config, "lsq", seeds=range(40, 60)), expected)  # one balancer sees all


@pytest.mark.slow
@pytest.mark.parametrize(("servers", "room", "known"), [(2, 80, 5.474913), (3, 45, 3.982420)])
def test_join_the_shortest_queue_under_heavy_load(servers, room, known):
    expected = theory.shortest_queue_sojourn_s(servers, 0.9, servers, room)
    assert expected == pytest.approx(known, rel=1e-5)
    samples = means(world([server()] * servers, 0.9 * servers, flows=500_000), "gsq", seeds=range(24))
    assert_mean(samples, expected, precision=0.008)


def test_known_values_of_join_the_shortest_queue():
    """Mean sojourns with unit service, found by an independent calculation."""
    for servers, load, room, known in (
        (2, 0.5, 16, 1.426321),
        (2, 0.8, 40, 2.955737),
        (3, 0.5, 12, 1.244836),
    ):
        assert theory.shortest_queue_sojourn_s(servers, load, servers, room) == pytest.approx(known, rel=1e-6)


@pytest.mark.parametrize(("servers", "load", "room"), [(2, 0.8, 40), (3, 0.8, 34)])
def test_shortest_of_two_choices(servers, load, room):
    expected = theory.shortest_queue_sojourn_s(servers, load, 2, room)
    assert_mean(means(world([server()] * servers, load * servers, flows=25_000), "gsq2"), expected)


def test_two_choices_in_a_large_pool():
    """The mean-field limit sum_i rho^(2^i - 2), with an error of order 1 / N (Mitzenmacher 2001, Thm. 1)."""
    load, n = 0.9, 300
    limit = sum(load ** (2.0**i - 2) for i in range(1, 12))
    samples = means(world([server()] * n, load * n, flows=120_000), "gsq2", seeds=range(8))
    assert abs(samples.mean() - limit) < 4 * samples.std(ddof=1) / np.sqrt(8) + 5 * limit / n


def test_rejections_are_those_of_mm1k():
    """K = admission_limit + 1: P(reject) = (1 - rho) rho^K / (1 - rho^(K+1)) (Kleinrock eq. 3.43)."""
    load, limit = 0.9, 4
    config = world([server()], load, admission_limit=limit)
    episodes = native.simulate(config, rule("ecmp"), list(SEEDS))
    share = np.array([episode["rejected"] / episode["flows"] for episode in episodes])
    room = limit + 1
    assert_mean(share, (1 - load) * load**room / (1 - load ** (room + 1)))


def test_a_rejection_counts_with_its_penalty():
    """E[sojourn] = (1 - P) E[L] / (lambda (1 - P)) + P x penalty (Little's law for M/M/1/K)."""
    load, room, penalty_s = 0.9, 5, 40.0
    config = world([server()], load, admission_limit=room - 1, reject_sojourn_s=penalty_s)
    weights = load ** np.arange(room + 1)
    pi = weights / weights.sum()
    assert_mean(means(config), float(pi @ np.arange(room + 1)) / load + pi[-1] * penalty_s)
