"""Scenarios: the named ones are what they say, everything round-trips, and bad input is one clear line."""

import math
from pathlib import Path

import pytest

from steelyard.envs.errors import UserError
from steelyard.envs.scenario import Scenario, scenario_keys, scenario_names
from steelyard.envs.scenario_parse import keys_of
from steelyard.envs.toml_text import parse_value
from steelyard.envs.workload import Demand

REQUIRED = (
    "charon-64",
    "cluster-a-50",
    "cluster-a-75",
    "cluster-a-cpu",
    "cluster-a-randomised",
    "cluster-b-50",
    "cluster-b-75",
    "cluster-b-cpu",
    "cluster-burst",
    "cluster-capacity-drop",
    "cluster-capacity-drop-train",
    "cluster-churn",
    "cluster-diurnal",
    "cluster-elephants",
    "cluster-failure",
    "hlb-128",
    "large-6x20",
    "moderate-2x7",
    "testbed-2x4",
    "testbed-2x7",
    "web-trace",
)
SMALLEST = """
pool.servers = [{ workers = 1 }]
workload.arrival = { kind = "poisson", rate = 0.5 }
workload.stages = [{ kind = "cpu", demand = { kind = "exponential", mean_s = 1 } }]
"""
DEMANDS = {
    "exponential": ("mean_s = 2", 2.0),
    "deterministic": ("value_s = 0.5", 0.5),
    "uniform": ("low_s = 1, high_s = 2", 1.5),
    "lognormal": ("mean_s = 0.2, sigma = 1.5", 0.2),
    "pareto": ("mean_s = 0.3, alpha = 2.5", 0.3),
    "bimodal": ("values_s = [0.1, 1], probabilities = [0.9, 0.1]", 0.19),
    "trimodal": ("values_s = [0.1, 1, 10], probabilities = [0.5, 0.4, 0.1]", 1.45),
    "kmodal": ("values_s = [1, 2, 3, 4], probabilities = [0.25, 0.25, 0.25, 0.25]", 2.5),
    "discrete": ("values_s = [3], probabilities = [1]", 3.0),
    "hyperexponential": ("means_s = [0.1, 1], probabilities = [0.5, 0.5]", 0.55),
    "lognormal_mixture": ("means_s = [0.1, 1], sigmas = [0.2, 0.3], probabilities = [0.5, 0.5]", 0.55),
    "empirical": ("samples_s = [1, 2, 6]", 3.0),
}


def smallest(*overrides: str) -> Scenario:
    return Scenario.from_toml(SMALLEST, overrides)


def message(*overrides: str, scenario: str = "cluster-a-cpu") -> str:
    """The one line with which a scenario refuses overrides."""
    with pytest.raises(UserError) as caught:
        Scenario.load(scenario, overrides)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_named_scenarios_are_there():
    assert scenario_names() == sorted(REQUIRED)


@pytest.mark.parametrize("name", REQUIRED)
def test_offered_load_is_as_stated(name):
    scenario = Scenario.load(name)
    stated, computed = scenario.scenario.offered_load, scenario.offered_load()
    assert scenario.name == name
    assert scenario.scenario.description
    assert stated is not None
    assert computed.cpu == pytest.approx(stated.cpu, rel=1e-3)
    assert computed.io == pytest.approx(stated.io, rel=1e-3)


@pytest.mark.parametrize("name", REQUIRED)
def test_round_trip(name):
    scenario = Scenario.load(name)
    assert Scenario.from_toml(scenario.to_toml()) == scenario
    assert Scenario.from_dict(scenario.to_dict()) == scenario


@pytest.mark.parametrize(
    ("name", "balancers", "workers", "flows"),
    [
        ("cluster-a-cpu", 2, [4] * 4 + [2] * 4, 20.28 * 60),
        ("cluster-b-cpu", 2, [2] * 4 + [1] * 4, 10.14 * 60),
        ("hlb-128", 4, [2] * 64 + [1] * 64, 80_000),
        ("charon-64", 2, [2] * 32 + [1] * 32, 50_000),
        ("moderate-2x7", 2, [4] * 4 + [2] * 3, 92.95 * 60),
        ("large-6x20", 6, [4] * 10 + [2] * 10, 253.5 * 60),
    ],
)
def test_pools(name, balancers, workers, flows):
    scenario = Scenario.load(name)
    assert scenario.num_agents == balancers
    assert [server.workers for server in scenario.servers] == workers
    assert scenario.configured_weights() == [float(count) for count in workers]
    assert scenario.workload.arrival.mean_rate() * scenario.episode.horizon_s == pytest.approx(
        flows, rel=1e-3
    )


def test_capacity_drop_stays_stable_and_training_does_not_repeat_it():
    evaluation, training = (
        Scenario.load("cluster-capacity-drop"),
        Scenario.load("cluster-capacity-drop-train"),
    )
    assert evaluation.offered_load().cpu < evaluation.peak_load().cpu < 1
    assert all(event.t_s[0] == event.t_s[1] for event in evaluation.events)
    for event in training.events:
        assert event.t_s[0] < event.t_s[1]
        assert event.value[0] < event.value[1]
    assert any(event.count < len(event.targets) for event in training.events if event.count)
    assert training.pool == evaluation.pool
    assert training.workload == evaluation.workload


def test_defaults():
    scenario = smallest()
    assert (scenario.latency.hop_low_s, scenario.latency.hop_high_s) == (1e-4, 1e-3)
    assert (scenario.latency.node_low_s, scenario.latency.node_high_s) == (1e-6, 1e-5)
    assert (scenario.pool.admission_limit, scenario.pool.reject_sojourn_s) == (64, 40.0)
    assert (scenario.flow_table.buckets, scenario.flow_table.ways) == (65536, 4)
    assert scenario.observation.reservoir_size == 128
    assert (scenario.control.step_s, scenario.episode.horizon_s, scenario.episode.warmup_s) == (
        0.5,
        60.0,
        0.0,
    )
    assert scenario.reward.measure == "durations"


@pytest.mark.parametrize("kind", DEMANDS)
def test_demand_means(kind):
    keys, mean = DEMANDS[kind]
    scenario = smallest(f'workload.stages.0.demand={{ kind = "{kind}", {keys} }}')
    assert scenario.offered_load().cpu == pytest.approx(0.5 * mean)
    demand: Demand = scenario.workload.stages[0].demand
    made = demand.to_native()
    made.prepare("demand")
    assert made.mean() == pytest.approx(mean)


def test_mean_rate_of_a_modulated_process():
    scenario = smallest('workload.arrival={ kind = "mmpp", rates = [1, 4], mean_stay_s = [2, 1] }')
    assert scenario.offered_load().cpu == pytest.approx((1 * 2 + 4 * 1) / 3)


def test_timetable_load():
    scenario = Scenario.from_dict(
        Scenario.load("cluster-a-cpu").to_dict()
        | {
            "events": [
                {"kind": "arrival_scale", "t_s": 10, "value": [1, 2], "duration_s": 10},
                {"kind": "leave", "t_s": 30, "targets": [0, 7], "count": 1},
            ]
        }
    )
    assert scenario.offered_load(0).cpu == pytest.approx(20.28 / 24)
    assert scenario.offered_load(15).cpu == pytest.approx(2 * 20.28 / 24)
    assert scenario.offered_load(25).cpu == pytest.approx(20.28 / 24)
    assert scenario.offered_load(30).cpu == pytest.approx(20.28 / 20)
    assert scenario.peak_load().cpu == pytest.approx(2 * 20.28 / 24)


def test_overrides():
    scenario = Scenario.load(
        "cluster-a-cpu",
        [
            "pool.servers.0.workers=8",
            "workload.arrival.rate = 2.5e1",
            "rule.weights=[8,8,8,8,2,2,2,2]",
            "reward.kind=jain",
        ],
    )
    assert scenario.servers[3].workers == 8
    assert scenario.workload.arrival.rate == 25.0
    assert scenario.configured_weights() == [8.0] * 4 + [2.0] * 4
    assert scenario.reward.kind == "jain"
    assert scenario.scenario.offered_load is None
    assert scenario.offered_load().cpu == pytest.approx(25 / 40)
    assert scenario.with_overrides(["pool.balancers=3"]).num_agents == 3


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("0.5", 0.5),
        ("true", True),
        ("[1, 2.5]", [1, 2.5]),
        ('"a b"', "a b"),
        ("{ a = 1 }", {"a": 1}),
        ("sed", "sed"),
        ("1\nb = 2", "1\nb = 2"),
        ("", ""),
    ],
)
def test_override_values(text, value):
    assert parse_value(text) == value


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("pool.servers.0.workers=0", ("pool.servers.0.workers", "0", "1 to")),
        ("pool.servers=[]", ("pool.servers", "[]", "1 or more")),
        ("pool.servers.0.count=0", ("pool.servers.0.count", "0", "1 to")),
        ("pool.servers.2.workers=1", ("pool.servers.2", "0 to 1")),
        ("pool.balancers=two", ("pool.balancers", "'two'", "whole number")),
        ("pool.balancers=true", ("pool.balancers", "True", "whole number")),
        ("pool.ballancers=2", ("pool.ballancers", "did you mean 'balancers'", "allowed")),
        ("poool.balancers=2", ("poool", "did you mean 'pool'")),
        ("pool.servers.0=3", ("pool.servers.0", "3", "table")),
        ("pool.balancers.x=3", ("pool.balancers", "table or a list")),
        ("workload.arrival.rate=-1", ("workload.arrival.rate", "-1", "> 0")),
        ("workload.arrival.rate=0", ("workload.arrival.rate", "0", "> 0")),
        ("workload.arrival.rate=nan", ("workload.arrival.rate", "nan", "> 0")),
        ("workload.arrival.rate=inf", ("workload.arrival.rate", "inf", "> 0")),
        (f"workload.arrival.rate=1{'0' * 400}", ("workload.arrival.rate", "> 0")),
        (f"pool.balancers=0x{'f' * 5000}", ("pool.balancers", "whole number")),
        ("workload.arrival.kind=posson", ("workload.arrival.kind", "'posson'", "did you mean 'poisson'")),
        ("workload.arrival.period_s=3", ("workload.arrival.period_s", "kind 'poisson'", "rate")),
        ("workload.arrival={kind = 'poisson'}", ("workload.arrival.rate", "missing")),
        ("workload.stages.0.demand.kind=trace", ("workload.stages.0.demand.mean_s", "kind 'trace'")),
        (
            "workload.stages.0.demand={kind = 'trace'}",
            ("workload.stages.0.demand.kind", "workload.arrival.kind"),
        ),
        (
            "workload.stages.0.demand={kind='bimodal', values_s=[1,2,3], probabilities=[0.2,0.3,0.5]}",
            ("workload.stages.0.demand.values_s", "[1.0, 2.0, 3.0]", "list of 2"),
        ),
        (
            "workload.stages.0.demand={kind='kmodal', values_s=[1,2], probabilities=[0.2,0.3]}",
            ("workload.stages.0.demand.probabilities", "sum is 1"),
        ),
        (
            "workload.stages.0.demand={kind='uniform', low_s=2, high_s=1}",
            ("workload.stages.0.demand.low_s", "2", "below high_s"),
        ),
        ("rule.weights=[1, 2]", ("rule.weights", "[1.0, 2.0]", "8 numbers")),
        ("rule.weights=[1, 1, 1, 1, 1, 1, 1, -1]", ("rule.weights.7", "-1", ">= 0.0001")),
        ("rule.weights=[1, 1", ("rule.weights", "'[1, 1'", "list")),
        ("reward.kind=vbff", ("reward.kind", "'vbff'", "did you mean 'vbf'")),
        ("episode.warmup_s=60", ("episode.warmup_s", "60", "horizon_s")),
        ("control.step_s=61", ("control.step_s", "61", "horizon_s")),
        ("latency.hop_low_s=0.5", ("latency.hop_low_s", "0.5", "hop_high_s")),
        ("flow_table.buckets=1000", ("flow_table.buckets", "1000", "power of two")),
        ("events=[{kind='speed', t_s=1}]", ("events.0.value", "missing")),
        ("events=[{kind='leave', t_s=1, value=2}]", ("events.0.value", "kind 'leave'")),
        ("events=[{kind='leave', t_s=1, targets=[8]}]", ("events.0.targets", "8", "0 to 7")),
        ("events=[{kind='balancer_fail', t_s=1, targets=[2]}]", ("events.0.targets", "2", "0 to 1")),
        ("events=[{kind='leave', t_s=1, targets=[1], count=2}]", ("events.0.count", "2", "at most")),
        ("events=[{kind='leave', t_s=[5, 1]}]", ("events.0.t_s", "[5, 1]", "low <= high")),
        ("events=[{kind='workers', t_s=1, value=1.5}]", ("events.0.value", "1.5", "whole")),
        ("scenario.name=5", ("scenario.name", "5", "string")),
        ("no_equals_sign", ("no_equals_sign", "dotted.key=value")),
        ("a..b=1", ("a..b", "dotted.key=value")),
    ],
)
def test_bad_values_name_key_value_and_allowed(override, parts):
    text = message(override)
    for part in parts:
        assert part in text


def test_events_of_a_trace_cannot_scale_it():
    text = message("events=[{kind='arrival_scale', t_s=1, value=2}]", scenario="web-trace")
    assert "events.0.kind" in text
    assert "trace" in text


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ("cluster-a-cpuu", "did you mean 'cluster-a-cpu'"),
        ("none.toml", "cannot be read"),
        ("a/b", "cannot be read"),
    ],
)
def test_unknown_scenario(source, part):
    with pytest.raises(UserError, match=part):
        Scenario.load(source)


def test_files(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(SMALLEST)
    assert Scenario.load(path).name == "mine"
    path.write_text("pool = [")
    with pytest.raises(UserError, match="not valid TOML"):
        Scenario.load(path)
    path.write_bytes(b"a = '\xff'")
    with pytest.raises(UserError, match="not UTF-8"):
        Scenario.load(path)
    path.write_text("a = " + "[" * 100_000)
    with pytest.raises(UserError, match="nested too deeply"):
        Scenario.load(path)
    with pytest.raises(UserError, match="cannot be read"):
        Scenario.load(tmp_path)


def test_trace_file_lies_beside_the_scenario(tmp_path):
    (tmp_path / "mine.csv").write_text(
        "# steelyard-trace-v1\narrival_us,class,service_us,bytes\n0,a,1000,1\n9000,a,3000,1\n"
    )
    path = tmp_path / "mine.toml"
    path.write_text(
        "pool.servers = [{ workers = 1 }]\n"
        'workload.arrival = { kind = "trace", trace = "mine.csv", time_scale = 2 }\n'
        'workload.stages = [{ kind = "cpu", demand = { kind = "trace", scale = 3 } }]\n'
    )
    scenario = Scenario.load(path)
    trace = scenario.workload.arrival.load_trace()
    assert scenario.offered_load().cpu == pytest.approx(trace.mean_rate / 2 * 0.002 * 3)
    assert Scenario.from_toml(scenario.to_toml()).offered_load() == scenario.offered_load()
    (tmp_path / "mine.csv").write_text("# steelyard-trace-v1\narrival_us,class,service_us,bytes\n0,a,x,1\n")
    with pytest.raises(UserError, match=r"mine\.csv:3: "):
        Scenario.load(path).offered_load()
    (tmp_path / "mine.csv").unlink()
    with pytest.raises(UserError, match=r"workload\.arrival\.trace.*web"):
        Scenario.load(path).to_native()


@pytest.mark.parametrize("name", REQUIRED)
def test_native_configuration(name):
    scenario = Scenario.load(name)
    config = scenario.to_native()
    assert config.num_load_balancers == scenario.num_agents
    assert [server.workers for server in config.servers] == [server.workers for server in scenario.servers]
    assert [stage.kind for stage in config.stages] == [stage.kind for stage in scenario.workload.stages]
    assert config.arrival.kind == scenario.workload.arrival.kind
    assert config.horizon_s == scenario.episode.horizon_s
    assert len(config.events) == len(scenario.events)


def test_native_events():
    config = Scenario.load("cluster-capacity-drop").to_native()
    (event,) = config.events
    assert (event.kind, event.targets, event.count) == ("speed", [0, 1], -1)
    assert event.t_low_s == event.t_high_s
    assert event.value_low == event.value_high


def test_rules_take_the_weights_of_the_scenario():
    scenario = Scenario.load("cluster-a-cpu")
    assert list(scenario.to_rule("sed").weights) == [4.0] * 4 + [2.0] * 4
    weights = ["rule.weights=[1,2,3,4,5,6,7,8]"]
    assert list(scenario.with_overrides(weights).to_rule("sed").weights) == [1, 2, 3, 4, 5, 6, 7, 8]
    with pytest.raises(UserError, match="did you mean 'sed'"):
        scenario.to_rule("sedd")


def test_every_key_is_documented():
    keys = scenario_keys()
    assert len({row[0] for row in keys}) == len(keys)
    assert ("control.step_s", "0.5", "s") in [(key, default, unit) for key, _, default, unit, _ in keys]
    for key, allowed, _, unit, doc in keys_of(Scenario):
        assert allowed
        assert doc
        assert not math.isnan(len(unit))
        assert key.split(".")[-1].rstrip("[]")[-2:] != "_s" or unit == "s"


def test_reference_in_the_documentation():
    """docs/scenarios.md lists every named scenario with its load, and every key with its default."""
    text = (Path(__file__).parent.parent / "docs" / "scenarios.md").read_text()
    for name in scenario_names():
        scenario = Scenario.load(name)
        row = f"| `{name}` | {scenario.scenario.description} | {scenario.offered_load().cpu:.1%} |"
        assert row in text
    for key, allowed, default, unit, doc in scenario_keys():
        assert f"| `{key}` | {allowed} | {default or '(empty)'} | {unit} | {doc} |" in text
