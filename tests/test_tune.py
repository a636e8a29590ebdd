"""trainers/tune.py: the search itself, what it may share, and how its result is found again."""

import dataclasses
import json
import math

import pytest

from steelyard import native
from steelyard.agents import rules
from steelyard.envs.errors import UserError
from steelyard.envs.scenario import Scenario, scenario_names
from steelyard.trainers import tune


def quadratic(centre):
    """A bowl with coupled axes whose least point is centre."""

    def objective(point):
        deltas = [x - c for x, c in zip(point, centre, strict=True)]
        return sum(d * d for d in deltas) + 0.3 * math.prod(deltas) if len(deltas) > 1 else deltas[0] ** 2

    return objective


@pytest.mark.parametrize("centre", [(0.0,), (0.73,), (-1.9,), (0.4, -0.6)])
def test_search_finds_the_least_point(centre):
    found = tune.coordinate_search(quadratic(centre), len(centre))
    assert found == pytest.approx(centre, abs=0.05)


def test_search_finds_the_lower_of_two_valleys():
    """The scan looks at all of +- 2 before the golden section narrows."""
    found = tune.coordinate_search(lambda p: min((p[0] - 0.3) ** 2 + 0.1, (p[0] + 1.5) ** 2), 1)
    assert found[0] == pytest.approx(-1.5, abs=0.02)


def test_search_never_leaves_a_start_that_is_best():
    assert tune.coordinate_search(lambda p: 0.0 if p == (0.0, 0.0) else 1.0, 2) == (0.0, 0.0)


def test_search_without_freedom_returns_the_start():
    assert tune.coordinate_search(lambda p: 1.0, 0) == ()


def test_like_servers_share_a_weight():
    assert tune.weight_groups(Scenario.load("cluster-a-cpu")) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_weights_know_hardware_but_not_the_future():
    tree = Scenario.load("cluster-a-cpu").to_dict()
    tree["events"] = [{"kind": "speed", "t_s": 20, "value": 0.5, "targets": [1, 2]}]
    tree["pool"]["servers"] = [{"workers": 4}, {"workers": 4, "speed": 2.0}, {"workers": 4, "count": 2}]
    assert tune.weight_groups(Scenario.from_dict(tree)) == [[0, 2, 3], [1]]


def test_tuning_is_on_training_seeds_and_never_worse(monkeypatch):
    seeds = set()
    simulate = native.simulate

    def spy(config, rule, batch, **options):
        seeds.update(batch)
        return simulate(config, rule, batch, **options)

    monkeypatch.setattr(native, "simulate", spy)
    found = tune.tune(Scenario.load("cluster-a-cpu"), episodes=20)
    assert min(seeds) >= 2**63
    assert found.tuned_sojourn_s <= found.configured_sojourn_s
    assert len(set(found.weights[:4])) == len(set(found.weights[4:])) == 1
    assert found.configured == [4, 4, 4, 4, 2, 2, 2, 2]


def test_tuning_undoes_wrong_weights():
    """Told that all servers are equal, wcmp must learn that the fast half is about twice the slow half."""
    scenario = Scenario.load("cluster-a-cpu")
    found = tune.tune(scenario, "wcmp", episodes=60)
    assert 1.5 < found.weights[0] / found.weights[4] < 3.0


def test_tuning_does_not_depend_on_threads():
    scenario = Scenario.load("cluster-a-cpu")
    one, two = (tune.tune(scenario, episodes=8, threads=threads) for threads in (1, 2))
    assert one == two


def test_rules_without_configured_weights_are_refused():
    with pytest.raises(UserError, match="--rule: 'hlb'"):
        tune.tune(Scenario.load("cluster-a-cpu"), "hlb")


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """A directory with a tuned file for cluster-a-cpu, the only one that is searched."""
    monkeypatch.setattr(rules, "tuned_directories", lambda: [tmp_path])
    found = tune.tune(Scenario.load("cluster-a-cpu"), episodes=4)
    made_up = dataclasses.replace(found, weights=[3.0, 3, 3, 3, 1, 1, 1, 1])
    path = rules.tuned_file(tmp_path, "cluster-a-cpu", "sed")
    path.write_text(json.dumps(made_up.to_dict()))
    return path


def test_stored_weights_are_found_for_exactly_that_scenario(stored, monkeypatch):
    scenario = Scenario.load("cluster-a-cpu")
    assert tune.tuned_weights(scenario, "sed", "uncensored", 1) == [3, 3, 3, 3, 1, 1, 1, 1]
    unrelated = scenario.with_overrides(["reward.kind=jain", "rule.noise=2", "observation.reservoir_size=16"])
    assert tune.tuned_weights(unrelated, "sed", "uncensored", 1) == [3, 3, 3, 3, 1, 1, 1, 1]
    searched = []
    monkeypatch.setattr(
        tune,
        "tune",
        lambda *a, **k: searched.append(a) or dataclasses.make_dataclass("T", ["weights"])([9.0]),
    )
    monkeypatch.setattr(tune, "_searched", {})
    assert tune.tuned_weights(
        scenario.with_overrides(["workload.arrival.rate=12"]), "sed", "uncensored", 1
    ) == [9.0]
    assert tune.tuned_weights(scenario, "sed", "peer", 1) == [9.0]
    assert tune.tuned_weights(scenario, "wcmp", "uncensored", 1) == [9.0]
    assert len(searched) == 3


@pytest.mark.parametrize("content", ["", "{", "{}", '{"digest": 1}', "[]"])
def test_damaged_tuned_file_is_named(stored, content):
    stored.write_text(content)
    with pytest.raises(ValueError, match=r"cluster-a-cpu\.sed\.json: not a file of `steelyard tune`"):
        tune.tuned_weights(Scenario.load("cluster-a-cpu"), "sed", "uncensored", 1)


def test_committed_tunings_are_those_of_todays_scenarios():
    """A changed scenario must be tuned again; otherwise its file would silently never be used."""
    _, committed = rules.tuned_directories()
    for path in sorted(committed.glob("*.json")):
        tuning = json.loads(path.read_text())
        assert tuning["scenario"] in scenario_names()
        assert path.name == f"{tuning['scenario']}.{tuning['rule']}.json"
        assert tuning["digest"] == tune.scenario_digest(Scenario.load(tuning["scenario"])), path.name
