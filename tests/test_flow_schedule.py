"""The flows that a client plays are those that the simulator plays under the same seed."""

import numpy as np
import pytest

from steelyard import native
from steelyard.envs.scenario import Scenario

LONE_WORKERS = """
pool.servers = [{ workers = 64 }]
pool.balancers = 1
pool.admission_limit = 60000
latency = { hop_low_s = 0, hop_high_s = 0, node_low_s = 0, node_high_s = 0 }
episode.horizon_s = 20
"""
ARRIVALS = {
    "poisson": '{ kind = "poisson", rate = 40 }',
    "mmpp": '{ kind = "mmpp", rates = [10, 60], mean_stay_s = [2, 1] }',
    "diurnal": '{ kind = "diurnal", rate = 40, amplitude = 0.5, period_s = 7 }',
    "trace": '{ kind = "trace", trace = "web", time_scale = 3 }',
}
DEMANDS = {
    "exponential": '{ kind = "exponential", mean_s = 0.1 }',
    "lognormal": '{ kind = "lognormal", mean_s = 0.1, sigma = 1 }',
    "bimodal": '{ kind = "bimodal", values_s = [0.01, 0.5], probabilities = [0.8, 0.2] }',
    "trace": '{ kind = "trace", scale = 20 }',
}


def scenario(arrival: str, *demands: str) -> Scenario:
    """A server with a worker for everybody, so that a flow's sojourn is its demand."""
    stages = ", ".join(f'{{ kind = "cpu", demand = {DEMANDS[demand]} }}' for demand in demands)
    workload = f"workload.arrival = {ARRIVALS[arrival]}\nworkload.stages = [{stages}]\n"
    return Scenario.from_toml(workload + LONE_WORKERS)


@pytest.mark.parametrize(
    ("arrival", "demands"),
    [
        ("poisson", ["exponential"]),
        ("poisson", ["exponential", "bimodal"]),
        ("mmpp", ["lognormal"]),
        ("diurnal", ["bimodal"]),
        ("trace", ["trace"]),
    ],
)
def test_schedule_is_what_the_simulator_plays(arrival: str, demands: list[str]) -> None:
    made = scenario(arrival, *demands)
    flows = native.flow_schedule(made.to_native(), 7)
    (played,) = native.simulate(made.to_native(), made.to_rule("lsq"), [7], details=True)
    assert len(flows["arrival_s"]) == played["flows"] > 100
    order = np.argsort(played["arrival_s"], kind="stable")
    np.testing.assert_allclose(flows["arrival_s"], played["arrival_s"][order], atol=2e-6)
    np.testing.assert_allclose(flows["demand_s"], played["sojourn_s"][order], rtol=1e-5, atol=1e-7)


def test_schedule_depends_on_the_seed() -> None:
    made = scenario("poisson", "exponential").to_native()
    first, again, other = (native.flow_schedule(made, seed) for seed in (1, 1, 2))
    assert (first["arrival_s"] == again["arrival_s"]).all()
    assert (first["demand_s"] == again["demand_s"]).all()
    assert not np.isin(first["arrival_s"], other["arrival_s"]).any()


def test_what_no_client_can_ask_for_is_refused() -> None:
    io = Scenario.from_toml(
        'pool.servers = [{ workers = 1 }]\nworkload.arrival = { kind = "poisson", rate = 1 }\n'
        f'workload.stages = [{{ kind = "io", demand = {DEMANDS["exponential"]} }}]\n'
    )
    with pytest.raises(ValueError, match=r"workload\.stages\.0\.kind: 'io'"):
        native.flow_schedule(io.to_native(), 1)
    scaled = scenario("poisson", "exponential").to_dict()
    scaled["events"] = [{"kind": "arrival_scale", "t_s": 1, "value": 2}]
    with pytest.raises(ValueError, match=r"events\.0\.kind: 'arrival_scale'"):
        native.flow_schedule(Scenario.from_dict(scaled).to_native(), 1)
