"""The potential audit of the rack: exact at the stage, over a horizon wrong by what others' costs move."""

import json

import numpy as np
import pytest

from steelyard.envs.errors import UserError
from steelyard.envs.rack_audit import PROFILES, RackAudit, audited_rack, sample_rack
from steelyard.envs.rack_scenario import RackScenario
from steelyard.trainers import cli

DEAR = ("game.migration_cost=0.05", "game.steal_cost=0.05", "episode.horizon_s=0.05", "episode.warmup_s=0")


@pytest.fixture(scope="module", params=PROFILES)
def branches(request):
    scenario = RackScenario.load("rack-het-2x14-6x4", DEAR)
    return sample_rack(scenario, request.param, range(5), 12, 20)


def test_exact_at_the_stage(branches):
    payoff, phi, _ = RackAudit(branches).deltas("payoff", 0)
    assert np.abs(phi).min() > 1e-3  # every deviation moves something
    np.testing.assert_allclose(payoff, phi, rtol=0, atol=1e-12)
    record = RackAudit(branches).record("payoff", 0)
    assert record["epsilon_max"] <= 1e-12
    assert (record["horizon"], record["agreement"], record["samples"]) == ("stage", 1.0, 12)


def test_over_a_horizon_the_others_costs_are_missing(branches):
    """phi counts what the others pay in answer; u_i does not. epsilon is that, and it is there."""
    audit = RackAudit(branches)
    for steps in (1, 20):
        payoff, phi, _ = audit.deltas("payoff", steps)
        costs = branches.costs[:, :, :steps].sum(2)
        others = costs.sum(2) - np.take_along_axis(costs, branches.agent[:, None, None], 2)[..., 0]
        np.testing.assert_allclose(payoff - phi, others[:, 1] - others[:, 0], atol=1e-9)
        assert audit.record("payoff", steps)["epsilon_mean"] > 0.01  # of costs of 0.05 each
    assert audit.record("payoff", 20)["epsilon_mean"] > audit.record("payoff", 1)["epsilon_mean"]


def test_identical_interest_is_exact_at_any_horizon(branches):
    for steps in (0, 1, 20):
        record = RackAudit(branches).record("phi", steps)
        assert record["epsilon_max"] == 0
        assert record["scale"] > 0


def test_the_same_tasks_and_samples_again():
    scenario = RackScenario.load("rack-hom-8x8", DEAR)
    one, two = sample_rack(scenario, "random", range(2), 4), sample_rack(scenario, "random", range(2), 4)
    np.testing.assert_array_equal(one.costs, two.costs)
    np.testing.assert_array_equal(one.imbalance, two.imbalance)
    assert not np.array_equal(one.imbalance[:, 0], one.imbalance[:, 1])


@pytest.mark.parametrize(
    ("overrides", "profile", "steps", "part"),
    [
        ((), "jsq", 1, "policy of an audited rack 'jsq'.*linear, random"),
        (("episode.horizon_s=0.001", "episode.warmup_s=0"), "random", 10, "horizon = 10.*at most"),
        (("rack.servers=[{ workers = 8 }]",), "random", 1, "2 servers or more"),
        (("rack.dispatchers=2",), "random", 1, r"rack\.dispatchers"),
    ],
)
def test_refusals(overrides, profile, steps, part):
    with pytest.raises(UserError, match=part):
        sample_rack(RackScenario.load("rack-hom-8x8", overrides), profile, range(2), 2, steps)


def test_rewards_by_name():
    assert audited_rack() == ["payoff", "phi"]
    with pytest.raises(UserError, match=r"'vbf'.*payoff"):
        audited_rack(["vbf"])


def test_command(capsys, tmp_path):
    file = tmp_path / "audit.json"
    options = [text for value in DEAR for text in ("--set", value)]
    command = ["audit", "--scenario", "rack-hom-8x8", "--reward", "payoff", "--horizon", "stage"]
    status = cli.main([*command, "--horizon", "5", "--samples", "8", *options, "--json", str(file)])
    assert status == 0
    assert "payoff" in capsys.readouterr().out
    stage, horizon = json.loads(file.read_text())
    assert (stage["horizon"], stage["measure"], stage["profile"]) == ("stage", "true", "random")
    assert stage["epsilon_max"] <= 1e-12
    assert horizon["horizon"] == 5
    assert horizon["epsilon_mean"] > 0
    for extra, part in ((("--reward", "vbf"), "'vbf'"), (("--measure", "own"), "--measure")):
        assert cli.main(["audit", "--scenario", "rack-hom-8x8", *extra, "--samples", "2"]) == 2
        assert part in capsys.readouterr().err
    assert cli.main([*command[:3], "--nash", str(tmp_path), "--json", str(tmp_path / "n.json")]) == 2
    assert "'rack'" in capsys.readouterr().err
