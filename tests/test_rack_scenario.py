"""Rack scenarios: the named ones are what they say, everything round-trips, bad input is one clear line."""

from pathlib import Path

import pytest

from steelyard import native
from steelyard.envs.errors import UserError
from steelyard.envs.rack_native import rack_rule_names
from steelyard.envs.rack_scenario import RackScenario, rack_scenario_keys, rack_scenario_names
from steelyard.envs.rack_services import SERVICES
from steelyard.envs.scenario import Scenario, scenario_names
from steelyard.envs.worlds import all_scenario_names, load_scenario, scenario_from_dict, world

REQUIRED = {
    "pallas-8x10-bimodal": ([10] * 8, 0.8),
    "pallas-8x10-rocksdb": ([10] * 8, 0.8),
    "pallas-8x10-tpcc": ([10] * 8, 0.8),
    "rack-16x8": ([8] * 16, 0.85),
    "rack-2x16-14x2": ([16] * 2 + [2] * 14, 0.6),
    "rack-32x8": ([8] * 32, 0.85),
    "rack-adapt-12": ([8] * 4 + [6] * 4 + [4] * 4, 0.375),
    "rack-het-2x14-6x4": ([14] * 2 + [4] * 6, 0.85),
    "rack-het-2x14-9x4": ([14] * 2 + [4] * 9, 0.85),
    "rack-hom-8x8": ([8] * 8, 0.85),
}
MEANS_US = {
    "exp25": 25,
    "exp50": 50,
    "exp100": 100,
    "exp250": 250,
    "bimodal-90-10": 95,
    "hyperexp-1": 275,
    "hyperexp-2": 0.75 * 50 + 0.2 * 500 + 0.05 * 5000,
    "rocksdb-90-10": 37,
    "rocksdb-50-50": 65,
    "trimodal": 185,
    "tpcc": 0.43 * 5 + 0.04 * 6 + 0.45 * 16 + 0.04 * 62 + 0.04 * 74,
    "pallas-bimodal-50-50": 55,
    "pallas-bimodal-90-10": 19,
    "pallas-rocksdb-50-50": 331,
    "pallas-rocksdb-90-10": 75.8,
}
SMALLEST = """
scenario.world = "rack"
rack.servers = [{ workers = 2 }]
workload = { load = 0.5, service = "exp50" }
"""
TYPES = (
    '[{ service = { kind = "deterministic", value_s = 1e-4 } }, '
    '{ ratio = 3, service = { kind = "exponential", mean_s = 2e-5 } }]'
)


def message(*overrides: str, scenario: str = "rack-hom-8x8") -> str:
    """The one line with which a rack scenario refuses overrides."""
    with pytest.raises(UserError) as caught:
        RackScenario.load(scenario, overrides)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_named_scenarios_are_there():
    assert rack_scenario_names() == sorted(REQUIRED)
    assert all_scenario_names() == scenario_names() + sorted(REQUIRED)
    assert not set(scenario_names()) & set(REQUIRED)


@pytest.mark.parametrize("name", REQUIRED)
def test_named_scenarios_are_what_they_say(name):
    workers, load = REQUIRED[name]
    scenario = load_scenario(name)
    assert isinstance(scenario, RackScenario)
    assert (world(scenario), scenario.name) == ("rack", name)
    assert scenario.scenario.description
    assert [server.workers for server in scenario.servers] == workers
    assert scenario.offered_load() == pytest.approx(load)


@pytest.mark.parametrize("name", REQUIRED)
def test_round_trip(name):
    scenario = RackScenario.load(name)
    assert RackScenario.from_toml(scenario.to_toml()) == scenario
    assert RackScenario.from_dict(scenario.to_dict()) == scenario
    assert scenario_from_dict(scenario.to_dict()) == scenario


@pytest.mark.parametrize("name", REQUIRED)
def test_native_configuration(name):
    scenario = RackScenario.load(name)
    config = scenario.to_native()
    assert [server.workers for server in config.servers] == REQUIRED[name][0]
    assert config.arrival.rate == pytest.approx(scenario.arrival_rate())
    assert config.mean_service_s() == pytest.approx(scenario.workload.mean_service_s())
    assert config.task_delay.constant_s == scenario.network.task_delay.constant_s > 0
    assert config.load_info == scenario.loads.info
    assert (config.horizon_s, config.warmup_s) == (scenario.episode.horizon_s, scenario.episode.warmup_s)
    assert [event.t_s for event in config.events] == [event.t_s for event in scenario.events]


@pytest.mark.parametrize("service", SERVICES)
def test_services_have_their_means(service):
    assert set(MEANS_US) == set(SERVICES)
    scenario = RackScenario.load("rack-hom-8x8", [f"workload.service={service}"])
    assert scenario.workload.mean_service_s() * 1e6 == pytest.approx(MEANS_US[service])
    assert scenario.to_native().mean_service_s() * 1e6 == pytest.approx(MEANS_US[service])
    assert scenario.offered_load() == pytest.approx(0.85)


def test_defaults_of_the_smallest():
    scenario = RackScenario.from_toml(SMALLEST)
    config = scenario.to_native()
    assert (config.discipline, config.load_info, config.load_measure) == ("fcfs", "broadcast", "tasks")
    assert (config.broadcast_period_s, config.broadcast_phase) == (100e-6, "together")
    assert (config.dispatchers, config.steal_threshold, config.steal_least) == (0, 0, 1)
    assert config.task_delay.constant_s == config.migration_work_s == 0
    assert config.own_load_exact
    assert (scenario.game.reward, scenario.game.migration_cost) == ("payoff", 1e-4)


def test_the_simulator_meets_the_rate_and_the_mixture():
    """Counts of Poisson arrivals and of types lie within 4 standard errors."""
    scenario = RackScenario.load("pallas-8x10-tpcc", ["episode.horizon_s=0.05", "episode.warmup_s=0"])
    (stats,) = native.simulate_rack(scenario.to_native(), scenario.to_rule("random"), [1], drain=True)
    expected = scenario.arrival_rate() * 0.05
    assert abs(stats["tasks"] - expected) < 4 * expected**0.5
    for share, part in zip((0.43, 0.04, 0.45, 0.04, 0.04), stats["by_type"], strict=True):
        error = (share * (1 - share) * stats["tasks"]) ** 0.5
        assert abs(part["tasks"] - share * stats["tasks"]) < 4 * error


def test_types_and_arrivals_of_ones_own():
    scenario = RackScenario.load(
        "rack-hom-8x8",
        [
            "workload.service=types",
            f"workload.types={TYPES}",
            "workload.load=0",
            'workload.arrival={ kind = "mmpp", rates = [1e5, 4e5], mean_stay_s = [2e-3, 1e-3] }',
        ],
    )
    mean_s = (1e-4 + 3 * 2e-5) / 4
    assert scenario.workload.mean_service_s() == pytest.approx(mean_s)
    assert scenario.offered_load() == pytest.approx(2e5 * mean_s / 64)
    assert RackScenario.from_toml(scenario.to_toml()) == scenario
    assert scenario.to_native().arrival.kind == "mmpp"


def test_three_shifts():
    scenario = RackScenario.load("rack-adapt-12")
    rates = [scenario.arrival_rate(t) for t in (0, 0.3, 0.5, 0.7, 1.1)]
    assert rates == pytest.approx([540e3, 540e3, 360e3, 540e3, 540e3])
    assert scenario.offered_load(1.1) == pytest.approx(540e3 * 50e-6 / (72 - 16))
    assert scenario.peak_load() == scenario.offered_load(1.1)
    fast = [sum(event.split[:4]) / sum(event.split) for event in scenario.events if event.split]
    assert fast == pytest.approx([0.6, 1 / 3, (120 + 180) / 540, 1 / 3])
    kinds = [event.kind for event in scenario.to_native().events]
    assert kinds == ["split", "split", "arrival_scale", "arrival_scale", "split", "split", "speed"]


def test_capacity_follows_workers_and_speed():
    events = (
        "events=[{ kind = 'workers', t_s = 0.1, value = 4, targets = [0, 1] }, "
        "{ kind = 'speed', t_s = 0.2, value = 0.5 }, { kind = 'speed', t_s = 0.3, value = 1, targets = [2] }]"
    )
    scenario = RackScenario.load("rack-hom-8x8", [events])
    work = 0.85 * 64
    loads = [scenario.offered_load(t) for t in (0.05, 0.1, 0.25, 0.35)]
    assert loads == pytest.approx([0.85, work / 56, work / 28, work / 32])


def test_rules_and_their_parameters():
    scenario = RackScenario.load("rack-hom-8x8", ["rule.d=3", "rule.steal=longest"])
    assert {"jsq", "po2", "cfcfs", "racksched", "sparrow", "jbt"} <= set(rack_rule_names())
    assert "decider" not in rack_rule_names()
    for name in rack_rule_names():
        scenario.to_rule(name).check(scenario.to_native())
    rule = scenario.to_rule("power_of_d:increments=true,info=exact")
    assert (rule.name, rule.d, rule.increments, rule.info) == ("power_of_d", 3, True, "exact")
    assert (scenario.to_rule("po2").d, scenario.to_rule("po2:d=4").d) == (2, 4)
    assert rule.steal == "longest"
    weighted = scenario.to_rule("sed:weights=[1, 2, 3, 4, 5, 6, 7, 8],first=true")
    assert (list(weighted.weights), weighted.first) == ([1, 2, 3, 4, 5, 6, 7, 8], True)
    assert scenario.to_rule("jbt").threshold == 30


@pytest.mark.parametrize(
    ("policy", "parts"),
    [
        ("jsqq", ("unknown rule of a rack 'jsqq'", "did you mean 'jsq'")),
        ("jsq:increment=true", ("policy jsq:increment=true.increment", "did you mean 'increments'")),
        ("jsq:increments", ("policy jsq:increments", "KEY=VALUE")),
        ("po2:d=0", ("policy po2:d=0.d", "0", "1 to 64")),
        ("po2:d=two", ("d = 'two'", "whole number")),
        ("jsq:info=psychic", ("info", "'psychic'", "broadcast")),
    ],
)
def test_bad_rules(policy, parts):
    with pytest.raises(UserError) as caught:
        RackScenario.load("rack-hom-8x8").to_rule(policy)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("rack.servers.0.workers=0", ("rack.servers.0.workers", "0", "1 to 4096")),
        ("rack.servers.0.count=5000", ("rack.servers.0.count", "5000")),
        ("rack.server=[]", ("rack.server", "did you mean 'servers'")),
        ("rack.discipline=lifo", ("rack.discipline", "'lifo'", "darc")),
        ("rack.discipline=quantum", ("rack.quantum_s", "> 0", "'quantum'")),
        ("rack.dispatchers=-1", ("rack.dispatchers", "-1")),
        ("workload.load=0", ("workload.load is missing", "arrival")),
        ("workload.load=-0.5", ("workload.load", "-0.5", ">= 0")),
        ("workload.load=nan", ("workload.load", "nan")),
        (
            "workload.arrival={ kind = 'poisson', rate = 1 }",
            ("workload.load", "0.85", "0 when workload.arrival"),
        ),
        ("workload.service=exp51", ("workload.service", "'exp51'", "did you mean")),
        ("workload.service=types", ("workload.types is missing",)),
        (f"workload.types={TYPES}", ("workload.service", "'exp50'", "'types'")),
        ("workload.split=[1, 1]", ("workload.split", "[1.0, 1.0]", "8 shares")),
        ("workload.split=[0, 0, 0, 0, 0, 0, 0, 0]", ("workload.split", "not all 0")),
        ("network.task_delay.constant_s=-1e-6", ("network.task_delay.constant_s", "-1e-06", ">= 0")),
        ("network.task_delay=2e-6", ("network.task_delay", "table")),
        ("network.task_delay.jitter={ kind = 'trace' }", ("network.task_delay.jitter.kind", "'trace'")),
        ("loads.info=psychic", ("loads.info", "'psychic'")),
        ("loads.broadcast_period_s=0", ("loads.broadcast_period_s", "0", ">= 1e-09")),
        ("loads.broadcast_period_s=2", ("loads.broadcast_period_s", "2", "episode.horizon_s = 1")),
        ("loads.rate_ewma=0", ("loads.rate_ewma", "0", "> 0")),
        ("episode.warmup_s=1", ("episode.warmup_s", "1", "below horizon_s")),
        ("rule.weights=[1]", ("rule.weights", "8 numbers")),
        ("rule.threshhold=3", ("rule.threshhold", "did you mean 'threshold'")),
        ("game.reward=vbf", ("game.reward", "'vbf'", "payoff")),
        ("scenario.world=cluster", ("scenario.world", "'cluster'")),
        ("pool.balancers=2", ("pool", "unknown key", "rack")),
        ("events=[{ kind = 'speed', t_s = 1 }]", ("events.0.value is missing",)),
        ("events=[{ kind = 'split', t_s = 1, value = 2 }]", ("events.0.value", "kind 'split'")),
        ("events=[{ kind = 'split', t_s = 1, split = [1] }]", ("events.0.split", "8 shares")),
        ("events=[{ kind = 'speed', t_s = 1, value = 2, targets = [8] }]", ("events.0.targets", "0 to 7")),
        (
            "events=[{ kind = 'speed', t_s = 1, value = 2, targets = [1, 1] }]",
            ("events.0.targets", "repetition"),
        ),
        ("events=[{ kind = 'workers', t_s = 1, value = 1.5 }]", ("events.0.value", "1.5", "whole")),
    ],
)
def test_bad_values_name_key_value_and_allowed(override, parts):
    text = message(override)
    for part in parts:
        assert part in text


def test_worlds_are_told_apart(tmp_path):
    with pytest.raises(UserError, match=r"rack-hom-8x8: is of the world 'rack'.* 'cluster'"):
        Scenario.load("rack-hom-8x8")
    with pytest.raises(UserError, match=r"cluster-a-cpu: is of the world 'cluster'.* 'rack'"):
        RackScenario.load("cluster-a-cpu")
    with pytest.raises(UserError, match="did you mean 'rack-hom-8x8'"):
        load_scenario("rack-hom-8x9")
    path = tmp_path / "mine.toml"
    path.write_text(SMALLEST)
    assert load_scenario(path).name == "mine"
    assert world(load_scenario(path)) == "rack"
    path.write_text(SMALLEST.replace('"rack"', '"racks"'))
    with pytest.raises(UserError, match=r"scenario\.world = 'racks'.*cluster, rack"):
        load_scenario(path)
    cluster = Scenario.load("cluster-a-cpu")
    path.write_text(cluster.to_toml() + "\n[scenario2]\n")
    with pytest.raises(UserError, match="scenario2: unknown key"):
        load_scenario(path)
    path.write_text(cluster.to_toml().replace("[scenario]", '[scenario]\nworld = "cluster"'))
    assert load_scenario(path) == cluster


def test_a_trace_has_no_rate_to_scale():
    overrides = [
        "workload.load=0",
        "workload.arrival={ kind = 'trace', trace = 'web' }",
        "events=[{ kind = 'arrival_scale', t_s = 0.1, value = 2 }]",
    ]
    assert "events.0.kind" in message(*overrides)
    with pytest.raises(UserError, match=r"workload\.arrival\.trace"):
        RackScenario.load(
            "rack-hom-8x8", ["workload.load=0", "workload.arrival={ kind = 'trace', trace = 'no.csv' }"]
        ).to_native()


def test_documentation():
    """docs/rack-scenarios.md lists every named rack with its load, every key, and every service."""
    text = (Path(__file__).parent.parent / "docs" / "rack-scenarios.md").read_text()
    for name in rack_scenario_names():
        scenario = RackScenario.load(name)
        assert f"| `{name}` | {scenario.scenario.description} | {scenario.offered_load():.1%} |" in text
    for key, allowed, default, unit, doc in rack_scenario_keys():
        assert f"| `{key}` | {allowed} | {default or '(empty)'} | {unit} | {doc} |" in text
    for service in SERVICES:
        assert f"`{service}`" in text
