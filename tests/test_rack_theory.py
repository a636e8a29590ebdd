"""The rack world against exact results: |x - formula| below four standard errors (theory.py)."""

import itertools

import numpy as np
import pytest
import theory
from racks import US, WORKLOADS, by_type, column, exp_type, fixed_type, rack, runs
from worlds import STANDARD_ERRORS, assert_mean, distribution, lognormal, standard_error

from steelyard import native

UNIT = [exp_type(1000)]  # results in units of the mean service are in [ms]
SEEDS = range(12)


def assert_quoted(samples: np.ndarray, quoted: float, tolerance: float) -> None:
    """The mean of the samples is within a relative tolerance and four standard errors of a quoted number."""
    error = standard_error(samples)
    assert error < tolerance * quoted, f"too few samples: {samples.mean()} +- {error}"
    assert abs(samples.mean() - quoted) < tolerance * quoted + STANDARD_ERRORS * error


@pytest.mark.parametrize(
    ("workers", "mean", "p99"), [(1, 10.0, 46.05), (8, 1.8769, 7.087), (64, 52.427 / 50, 233.06 / 50)]
)
def test_mmc_numbers_of_the_specification(workers, mean, p99):
    assert theory.mmc_sojourn_s(0.9 * workers, 1.0, workers) == pytest.approx(mean, rel=1e-4)
    assert theory.mmc_sojourn_quantile_s(0.9 * workers, 1.0, workers, 0.99) == pytest.approx(p99, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "tasks"), [(1, 1_000_000), (8, 600_000), (64, 600_000)])
def test_mmc(workers, tasks):
    records = runs(rack([workers], UNIT, 0.9, tasks), "local", SEEDS)
    assert_mean(column(records) / 1000, theory.mmc_sojourn_s(0.9 * workers, 1.0, workers))
    p99 = theory.mmc_sojourn_quantile_s(0.9 * workers, 1.0, workers, 0.99)
    assert_mean(column(records, "latency_p99_us") / 1000, p99, precision=0.03)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("servers", "load", "quoted"),
    [
        (2, 0.5, 1.426321),
        (2, 0.8, 2.955737),
        (2, 0.9, 5.474913),
        (3, 0.5, 1.244836),
        (3, 0.8, 2.285548),
        (3, 0.9, 3.982420),
    ],
)
def test_join_the_shortest_queue(servers, load, quoted):
    room = 40 if servers == 3 else 120
    assert theory.shortest_queue_sojourn_s(servers, load, servers, room) == pytest.approx(quoted, rel=1e-4)
    records = runs(rack([1] * servers, UNIT, load, 400_000), "jsq", SEEDS)
    assert_mean(column(records) / 1000, quoted)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("d", "load", "quoted"),
    [(2, 0.9, 2.61406), (3, 0.9, 2.02786), (2, 0.5, 1.26569), (2, 0.8, 1.94736), (2, 0.95, 3.38305)],
)
def test_power_of_d(d, load, quoted):
    """1000 queues are .01 to .02 above the limit of infinitely many at a load of .9, less below it."""
    assert theory.power_of_d_sojourn(load, d) == pytest.approx(quoted, rel=1e-5)
    config = rack([1] * 1000, UNIT, load, 1_500_000, broadcast_period_s=1.0)
    samples = column(runs(config, native.RackRule("power_of_d", d=d), range(4))) / 1000
    error = standard_error(samples)
    assert error < 0.01
    excess = samples.mean() - quoted
    assert -STANDARD_ERRORS * error < excess < (0.05 if load > 0.9 else 0.02) + STANDARD_ERRORS * error


@pytest.mark.parametrize(("fast", "slow", "quoted"), [((2, 16), (14, 2), 0.6154), ((2, 14), (9, 4), 0.8594)])
def test_power_of_two_is_unstable_above_its_limit(fast, slow, quoted):
    limit = theory.power_of_two_limit(fast, slow)
    assert limit == pytest.approx(quoted, abs=1e-4)
    workers = [fast[1]] * fast[0] + [slow[1]] * slow[0]
    tasks = 400_000
    left = {}
    for factor in (0.95, 1.05):
        world = native.RackWorld(rack(workers, UNIT, factor * limit, tasks), native.RackRule("power_of_d"), 1)
        world.run_until(tasks / (factor * limit * sum(workers)) * 1e-3)
        left[factor] = world.loads()[fast[0] :].sum()
    excess = 0.05 * limit / (1.05 * limit) * slow[0] * slow[1] / sum(workers) / limit * tasks
    assert left[0.95] < 0.05 * excess
    assert left[1.05] > 0.8 * excess


LAWS = {
    "exponential": (distribution("exponential", [50e-6])),
    "deterministic": (distribution("deterministic", [50e-6])),
    "bimodal": (distribution("discrete", [50e-6, 500e-6], [0.9, 0.1])),
    "hyperexponential": (distribution("hyperexponential", [50e-6, 500e-6], [0.5, 0.5])),
    "lognormal": lognormal(50e-6, 1.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS)
def test_mg1(law):
    """Pollaczek and Khinchine."""
    service = LAWS[law]
    mean_s = service.mean()
    waiting_s = theory.mg1_waiting_s(
        0.7 / mean_s, mean_s, theory.second_moment_s2(service.kind, service.a, service.b)
    )
    records = runs(rack([1], [native.RackType(service)], 0.7, 300_000), "local", SEEDS)
    assert_mean(column(records), (waiting_s + mean_s) / US)


PS_TYPES = [fixed_type(20, 0.6), fixed_type(100, 0.3), fixed_type(400, 0.1)]


@pytest.mark.slow
def test_processor_sharing_is_fair_to_every_size():
    """E[T | x] = x / (1 - rho) (Kleinrock vol. 2, eq. 4.17)."""
    records = runs(rack([1], PS_TYPES, 0.7, 300_000, discipline="ps"), "local", SEEDS)
    for k, size_us in enumerate((20, 100, 400)):
        assert_mean(by_type(records, k), size_us / 0.3)


@pytest.mark.slow
def test_a_small_quantum_is_processor_sharing():
    config = rack([1], PS_TYPES, 0.7, 50_000, discipline="quantum", quantum_s=0.5 * US)
    records = runs(config, "local", SEEDS)
    for k, size_us in enumerate((20, 100, 400)):
        assert_quoted(by_type(records, k), size_us / 0.3, 0.02)


def test_a_large_quantum_is_fcfs_and_switches_cost():
    fields = {"discipline": "quantum", "quantum_s": 1.0}
    plain = runs(rack([4, 4], PS_TYPES, 0.8, 20_000), "jsq", range(2))
    large = runs(rack([4, 4], PS_TYPES, 0.8, 20_000, **fields), "jsq", range(2))
    np.testing.assert_array_equal(column(plain), column(large))
    means = []
    for switch_s in (0, 2 * US, 4 * US):
        fields = {"discipline": "quantum", "quantum_s": 50 * US, "switch_s": switch_s}
        records = runs(rack([4, 4], PS_TYPES, 0.8, 20_000, **fields), "jsq", range(2))
        assert column(records, "preemptions").min() > 0
        means.append(column(records).mean())
    assert means[0] < means[1] < means[2]


@pytest.mark.slow
def test_a_central_queue_at_a_distance():
    """A worker is bound for S + RTT per task: M/G/1 on that, and rho_max = S / (S + RTT)."""
    rtt_us, mean_us = 10.0, 40.0
    rule = native.RackRule("cfcfs", rtt_s=rtt_us * US)
    load = 0.8 * mean_us / (mean_us + rtt_us)
    rate = load / (mean_us * US)
    second = (2 * mean_us**2 + 2 * mean_us * rtt_us + rtt_us**2) * US**2
    waiting_us = theory.mg1_waiting_s(rate, (mean_us + rtt_us) * US, second) / US
    records = runs(rack([1], [exp_type(mean_us)], load, 300_000), rule, SEEDS)
    assert_mean(column(records), waiting_us + rtt_us / 2 + mean_us)


def test_a_central_queue_at_a_distance_serves_no_more_than_its_limit():
    world = native.RackWorld(
        rack([4, 2], [exp_type(40)], 1.0, 200_000), native.RackRule("cfcfs", rtt_s=10 * US), 1
    )
    world.run_until(0.02)
    first = world.counts()["completions"].sum()
    world.run_until(0.52)
    served = world.counts()["completions"].sum() - first
    expected = 0.5 * 6 / (50 * US)
    assert abs(served - expected) < STANDARD_ERRORS * np.sqrt(expected) * 0.8  # its dispersion is (40 / 50)^2


@pytest.mark.slow
@pytest.mark.parametrize("workload", ["bimodal", "h1"])
def test_mg64_is_near_the_usual_approximation(workload):
    """E[W] of M/G/c is about (1 + C^2) / 2 times that of M/M/c (Lee and Longton 1959)."""
    types = WORKLOADS[workload]
    ratios = [t.ratio for t in types]
    second = sum(t.ratio * theory.second_moment_s2(t.service.kind, t.service.a, t.service.b) for t in types)
    config = rack([8] * 8, types, 0.9, 1_000_000)
    mean_s = config.mean_service_s()
    variability = second / sum(ratios) / mean_s**2 / 2  # (1 + C^2) / 2
    waiting_us = variability * theory.mmc_waiting_s(0.9 * 64 / mean_s, mean_s, 64) / US
    samples = column(runs(config, "cfcfs", range(8)))
    assert abs(
        samples.mean() - mean_s / US - waiting_us
    ) < 0.2 * waiting_us + STANDARD_ERRORS * standard_error(samples)


# Mean and p99 [us] at a load of .9 on 8 x 8 (rack.md, "Reference simulation").
REFERENCE = {
    ("exp50", "cfcfs"): (52.6, 232.5),
    ("exp50", "jsq"): (52.8, 233),
    ("exp50", "power_of_d"): (55.5, 237),
    ("exp50", "racksched"): (55.3, 237),
    ("bimodal", "cfcfs"): (101.9, 523),
    ("bimodal", "jsq"): (101, 523),
    ("bimodal", "power_of_d"): (105, 533),
    ("bimodal", "racksched"): (104, 532),
    ("h1", "cfcfs"): (299, 1993),
    ("h1", "jsq"): (297, 1979),
    ("h1", "power_of_d"): (322, 2012),
    ("h1", "racksched"): (313, 2110),
}


@pytest.mark.slow
@pytest.mark.parametrize(("workload", "rule"), REFERENCE)
def test_reference_simulation(workload, rule):
    config = rack([8] * 8, WORKLOADS[workload], 0.9, 600_000)
    if rule == "racksched":
        config.discipline, config.quantum_s = "quantum", 500 * US
    records = runs(config, rule, range(4))
    mean, p99 = REFERENCE[workload, rule]
    assert_quoted(column(records), mean, 0.01)
    assert_quoted(column(records, "latency_p99_us"), p99, 0.02)


# p99 [us] of exp50 at .85 on 8 x 8, tasks at the servers, 4 us to migrate, P = 10, 100, 1000 us (rack.md,
# "Staleness"). A server knows its own load; jbt counts 30 waiting tasks beside 8 in service.
STALENESS = {
    "jsq": ({}, (248, 600, 4758)),
    "jsq, increments": ({"increments": True, "keep": True}, (240, 257, 245)),
    "jbt, random": ({"threshold": 38, "increments": True}, (279, 278, 754)),
    "jbt, first": ({"threshold": 38, "increments": True, "first": True}, (439, 604, 980)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", STALENESS)
def test_staleness(name):
    parameters, quoted = STALENESS[name]
    for period_us, p99 in zip((10, 100, 1000), quoted, strict=True):
        config = rack([8] * 8, WORKLOADS["exp50"], 0.85, 500_000)
        config.load_info, config.broadcast_period_s = "broadcast", period_us * US
        config.task_delay, config.message_delay = native.RackDelay(4 * US), native.RackDelay(2 * US)
        records = runs(config, native.RackRule(name.split(",")[0], **parameters), range(4))
        assert_quoted(column(records, "latency_p99_us"), p99, 0.02)


@pytest.mark.parametrize("workload", ["exp50", "bimodal"])
def test_equal_policies_agree_task_by_task(workload):
    """One queue however its workers are housed; least work left on single workers is one queue (M/G/k)."""
    types = WORKLOADS[workload]
    together, housed = (runs(rack(w, types, 0.9, 50_000), "cfcfs", [1]) for w in ([8], [2, 3, 3]))
    assert column(together) == column(housed)
    alone = runs(rack([1] * 8, types, 0.9, 50_000), "least_work_left", [1])
    assert column(alone) == pytest.approx(column(together), rel=1e-9)
    digests = {
        name: runs(rack([4] * 4, types, 0.9, 20_000), name, [1])[0]["digest"] for name in ("jsq", "sed")
    }
    assert digests["jsq"] == digests["sed"]


@pytest.mark.slow
def test_late_binding_everywhere_is_one_queue():
    """A reservation at each single-worker server, no delay: the first free worker gets the oldest task."""
    records = runs(rack([1] * 4, UNIT, 0.8, 200_000), native.RackRule("sparrow", d=4), SEEDS)
    assert_mean(column(records) / 1000, theory.mmc_sojourn_s(3.2, 1.0, 4))


@pytest.mark.slow
def test_darc_leaves_long_tasks_their_cores():
    """Long tasks may use their own cores alone; next to no short tasks: M/M/(c - 1)."""
    types = [exp_type(1, 0.001), exp_type(1000, 0.999)]
    records = runs(rack([4], types, 0.6, 300_000, discipline="darc"), "local", SEEDS)
    assert_mean(by_type(records, 1) / 1000, theory.mmc_sojourn_s(2.4, 1.0, 3))
    assert_quoted(by_type(records, 0), 1.0, 0.25)  # a core is free for them, but for their own traffic


def test_darc_of_one_group_is_fcfs():
    types = [fixed_type(50, 0.9), fixed_type(55, 0.1)]
    plain, darc = (
        runs(rack([4, 4], types, 0.9, 20_000, discipline=name), "jsq", range(2)) for name in ("fcfs", "darc")
    )
    np.testing.assert_array_equal(column(plain), column(darc))


@pytest.mark.slow
def test_shifts_of_split_rate_and_speed():
    """Servers that keep their tasks are M/M/1 queues, whatever is shifted on the way."""
    config = rack([1, 1], UNIT, 0.5, 200_000, split=[3, 1])
    begin_s = config.warmup_s / 2
    for kind, fields in (
        ("split", {"split": [1, 3]}),
        ("arrival_scale", {"value": 0.8}),
        ("speed", {"value": 2.0, "targets": [1]}),
    ):
        config.events = [*config.events, native.RackEvent(kind, begin_s, **fields)]
    expected_s = 0.25 * theory.mm1_sojourn_s(0.2, 1.0) + 0.75 * theory.mm1_sojourn_s(0.6, 2.0)
    assert_mean(column(runs(config, "local", SEEDS)) / 1000, expected_s)


@pytest.mark.slow
def test_workers_that_come_and_go():
    config = rack([4], UNIT, 0.4, 200_000)
    config.events = [native.RackEvent("workers", config.warmup_s / 2, 2, [0])]
    assert_mean(column(runs(config, "local", SEEDS)) / 1000, theory.mmc_sojourn_s(1.6, 1.0, 2))
    config.events = [*config.events, native.RackEvent("workers", config.warmup_s * 0.6, 8, [0])]
    assert_mean(column(runs(config, "local", SEEDS)) / 1000, theory.mmc_sojourn_s(1.6, 1.0, 8))


def test_stealing_helps_where_tasks_stay():
    means = {}
    for steal, delay_us in itertools.product(("none", "random", "longest"), (0, 20)):
        config = rack([2] * 4, WORKLOADS["exp50"], 0.8, 100_000, steal_delay=native.RackDelay(delay_us * US))
        records = runs(config, native.RackRule("local", steal=steal), range(2))
        means[steal, delay_us] = column(records).mean()
        assert (column(records, "steals") > 0).all() == (steal != "none")
    assert means["none", 0] == means["none", 20]
    for delay_us in (0, 20):
        assert means["longest", delay_us] < means["random", delay_us] < means["none", delay_us]
    assert means["longest", 0] < means["longest", 20]


def test_time_has_no_unit():
    """Everything ten times as long."""
    slow, fast = (
        runs(
            rack(
                [4, 2],
                [exp_type(50 * k), exp_type(500 * k, 0.1)],
                0.8,
                20_000,
                load_info="broadcast",
                broadcast_period_s=100 * US * k,
                task_delay=native.RackDelay(4 * US * k),
                message_delay=native.RackDelay(2 * US * k),
            ),
            "sed",
            [1],
        )
        for k in (10, 1)
    )
    assert slow[0]["digest"] == fast[0]["digest"]
    assert column(slow) == pytest.approx(10 * column(fast), rel=1e-5)
