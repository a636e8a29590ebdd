"""Arrival processes: counts, dispersion, integrals of the rate, scaling in mid-episode, circular replay."""

import math

import numpy as np
import pytest
import theory
from scipy import stats
from worlds import (
    STANDARD_ERRORS,
    assert_mean,
    cluster,
    distribution,
    event,
    exponential,
    first_row,
    rule,
    server,
    stage,
    standard_error,
    trace,
)

from steelyard import native


def arrival(kind: str, **fields) -> native.ArrivalConfig:
    made = native.ArrivalConfig()
    made.kind = kind
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def arrivals(process: native.ArrivalConfig, horizon_s: float, seeds: int, **fields) -> list[np.ndarray]:
    """Arrival times [s] in [0, horizon) of one episode per seed; nobody ever waits."""
    stages = fields.pop("stages", [stage("cpu", exponential(1e-6))])
    config = cluster([server(1000)], 1.0, stages, horizon_s=horizon_s, **fields)
    config.arrival = process
    episodes = native.simulate(config, rule("ecmp"), list(range(seeds)), details=True)
    return [np.sort(episode["arrival_s"].astype(float)) for episode in episodes]


def counts(times: list[np.ndarray], edges: np.ndarray) -> np.ndarray:
    """(R, K) arrivals of each episode in each interval."""
    return np.array([np.histogram(t, edges)[0] for t in times])


def test_poisson_counts_have_equal_mean_and_variance():
    table = counts(arrivals(arrival("poisson", rate=20.0), 200.0, 30), np.arange(0, 201, 2.0))
    assert_mean(table.mean(axis=1), 40.0)
    dispersion = table.var(axis=1, ddof=1) / table.mean(axis=1)
    assert_mean(dispersion, 1.0, precision=0.05)
    assert abs(np.corrcoef(table[:, :-1].ravel(), table[:, 1:].ravel())[0, 1]) < 4 / math.sqrt(table.size)


def test_poisson_gaps_are_exponential():
    times = np.concatenate(
        [np.diff(t, prepend=0.0) for t in arrivals(arrival("poisson", rate=5.0), 400.0, 4)]
    )
    assert stats.kstest(times, stats.expon(scale=0.2).cdf).pvalue > 1e-4


RATES, STAYS = (40.0, 5.0), (3.0, 6.0)


def test_mmpp_rate_and_dispersion():
    """Counts in windows far from the start, against the stationary process."""
    process = arrival("mmpp", mmpp_rates=list(RATES), mmpp_mean_s=list(STAYS))
    times = arrivals(process, 1000.0, 48)
    windows = counts(times, np.arange(50.0, 1001.0, 5.0))
    rate = theory.mmpp_mean_rate(RATES, STAYS)
    assert_mean(windows.mean(axis=1), 5.0 * rate, precision=0.03)
    second = ((windows - 5.0 * rate) ** 2).mean(axis=1) / (5.0 * rate)
    expected = theory.mmpp_dispersion(RATES, STAYS, 5.0)
    assert expected > 10
    assert_mean(second, expected, precision=0.05)


def test_mmpp_of_equal_rates_is_poisson():
    process = arrival("mmpp", mmpp_rates=[8.0, 8.0, 8.0], mmpp_mean_s=[1.0, 2.0, 0.1])
    times = np.concatenate([np.diff(t, prepend=0.0) for t in arrivals(process, 300.0, 4)])
    assert stats.kstest(times, stats.expon(scale=1 / 8).cdf).pvalue > 1e-4


@pytest.mark.parametrize("phase", [0.0, 0.25, 0.6])
def test_diurnal_counts_follow_the_integral_of_the_rate(phase):
    rate, amplitude, period_s = 30.0, 0.8, 40.0
    process = arrival(
        "diurnal", rate=rate, diurnal_amplitude=amplitude, diurnal_period_s=period_s, diurnal_phase=phase
    )
    edges = np.arange(0, 121, 5.0)
    table = counts(arrivals(process, 120.0, 40), edges)
    omega = 2 * math.pi / period_s
    area = rate * (edges - amplitude / omega * np.cos(omega * edges + 2 * math.pi * phase))
    for column, expected in zip(table.T, np.diff(area), strict=True):
        assert_mean(column, expected, precision=0.1)
    assert_mean(table.sum(axis=1), rate * 120.0)
    dispersion = ((table - np.diff(area)) ** 2 / np.diff(area)).mean(axis=1)
    assert_mean(dispersion, 1.0, precision=0.1)


def test_diurnal_without_amplitude_is_the_same_stream_as_poisson():
    flat = arrival("diurnal", rate=7.0, diurnal_amplitude=0.0, diurnal_period_s=10.0)
    (one,), (other,) = arrivals(flat, 100.0, 1), arrivals(arrival("poisson", rate=7.0), 100.0, 1)
    np.testing.assert_allclose(one, other, atol=1e-5)


PROCESSES = {
    "poisson": arrival("poisson", rate=20.0),
    "diurnal": arrival("diurnal", rate=20.0, diurnal_amplitude=0.5, diurnal_period_s=30.0),
    "mmpp": arrival("mmpp", mmpp_rates=[30.0, 10.0], mmpp_mean_s=[2.0, 2.0]),
}


@pytest.mark.parametrize("kind", PROCESSES)
def test_arrival_scale_changes_the_rate_at_once_and_ends(kind):
    """Twice the rate from 30 s to 60 s: twice the counts there, those of the unscaled process elsewhere."""
    scaled = [event("arrival_scale", 30.0, value=2.0, duration_s=30.0)]
    plain = counts(arrivals(PROCESSES[kind], 90.0, 40), np.array([0.0, 30.0, 60.0, 90.0]))
    table = counts(arrivals(PROCESSES[kind], 90.0, 40, events=scaled), np.array([0.0, 30.0, 60.0, 90.0]))
    np.testing.assert_array_equal(table[:, 0], plain[:, 0])  # the same stream until then
    for interval, factor in ((1, 2.0), (2, 1.0)):
        expected = factor * (600.0 if kind == "mmpp" else plain[:, interval].mean())
        error = math.hypot(standard_error(table[:, interval]), factor * standard_error(plain[:, interval]))
        assert error < 0.05 * expected
        assert abs(table[:, interval].mean() - expected) < STANDARD_ERRORS * error


def test_arrival_scale_in_the_middle_of_a_gap():
    """The rest of a gap shrinks by the factor: rate 0.01 made 1000 at t = 1 leaves no long gap over."""
    scale = [event("arrival_scale", 1.0, value=1e5)]
    for times in arrivals(arrival("poisson", rate=0.01), 1.5, 20, events=scale, step_s=0.5):
        after = times[times > 1.0]
        assert after[0] - 1.0 < 0.02
        assert abs(len(after) - 500) < 6 * math.sqrt(500)


def test_scaling_by_one_changes_nothing():
    scale = [event("arrival_scale", 3.0, value=1.0)]
    for kind, process in PROCESSES.items():
        (one,), (other,) = arrivals(process, 30.0, 1), arrivals(process, 30.0, 1, events=scale)
        np.testing.assert_allclose(one, other, atol=1e-5, err_msg=kind)


def replay(seed_count: int, horizon_s: float, time_scale: float = 1.0, **fields) -> list[dict]:
    config = cluster([server(1000)], 1.0, [stage("cpu", distribution("trace", [1.0]))], horizon_s=horizon_s)
    config.arrival = arrival("trace", time_scale=time_scale)
    for name, value in fields.items():
        setattr(config, name, value)
    return native.simulate(config, rule("ecmp"), list(range(seed_count)), details=True)


@pytest.mark.parametrize("time_scale", [1.0, 0.25, 3.0])
def test_a_trace_is_replayed_in_a_circle_from_a_row_of_the_seed(time_scale):
    arrival_s, service_s = [0.0, 1.0, 1.5, 4.0, 4.0], [0.1, 0.2, 0.3, 0.4, 0.5]
    recorded = trace(arrival_s, service_s)
    assert recorded.period_s == 5.0
    turns = np.concatenate([np.array(arrival_s) + 5.0 * turn for turn in range(12)]) * time_scale
    work = np.tile(service_s, 12)
    for seed, episode in enumerate(replay(12, 40.0 * time_scale, time_scale, trace=recorded)):
        first = first_row(seed, 5)
        begin = arrival_s[first] * time_scale
        expected = turns[first:] - begin
        inside = expected < 40.0 * time_scale
        order = np.argsort(episode["arrival_s"], kind="stable")
        np.testing.assert_allclose(episode["arrival_s"][order], expected[inside], atol=1e-5)
        np.testing.assert_allclose(np.sort(episode["sojourn_s"]), np.sort(work[first:][inside]), rtol=1e-6)
    assert len({first_row(seed, 5) for seed in range(12)}) > 2


def test_stages_serve_their_classes_of_a_trace():
    """Class 0 on the CPU at twice its recorded time, class 1 on the IO device at half of it."""
    recorded = trace([0.0, 10.0], [2.0, 4.0], class_id=[0, 1])
    stages = [
        stage("cpu", distribution("trace", [2.0], [0.0])),
        stage("io", distribution("trace", [0.5], [1.0])),
    ]
    for episode in replay(6, 100.0, trace=recorded, stages=stages):
        assert set(np.round(episode["sojourn_s"], 5)) == {4.0, 2.0}
        assert (np.bincount(episode["sojourn_s"].round().astype(int))[[2, 4]] >= 4).all()


def test_a_flow_of_no_class_served_is_done_at_once():
    recorded = trace([0.0, 10.0], [2.0, 4.0], class_id=[0, 1])
    stages = [stage("cpu", distribution("trace", [1.0], [0.0]))]
    (episode,) = replay(1, 100.0, trace=recorded, stages=stages)
    assert set(np.round(episode["sojourn_s"], 5)) == {2.0, 0.0}


BAD = [
    (arrival("poisson", rate=0.0), "workload.arrival.rate: 0"),
    (arrival("poisson", rate=float("nan")), "workload.arrival.rate"),
    (arrival("diurnal", rate=1.0, diurnal_amplitude=1.0, diurnal_period_s=1.0), "workload.arrival.amplitude"),
    (arrival("diurnal", rate=1.0, diurnal_amplitude=0.5), "workload.arrival.period_s"),
    (arrival("mmpp"), "workload.arrival.rates"),
    (arrival("mmpp", mmpp_rates=[1.0, 2.0], mmpp_mean_s=[1.0]), "workload.arrival.rates"),
    (arrival("mmpp", mmpp_rates=[1.0, 0.0], mmpp_mean_s=[1.0, 1.0]), "workload.arrival.rates"),
    (arrival("trace"), "workload.arrival.trace"),
]


@pytest.mark.parametrize(("process", "message"), BAD)
def test_bad_arrivals_are_named(process, message):
    with pytest.raises(ValueError, match=message):
        arrivals(process, 10.0, 1)


def test_a_trace_has_no_rate_to_scale():
    with pytest.raises(ValueError, match="no arrival rate to scale"):
        replay(1, 10.0, trace=trace([0.0, 1.0], [1.0, 1.0]), events=[event("arrival_scale", 1.0, value=2.0)])
