"""trainers/evaluation.py, comparison.py and agents/rules.py: who runs on which flows, and what it says."""

import numpy as np
import pytest
from zero_policy import policy_blob

from steelyard import native
from steelyard.agents import rules
from steelyard.envs.scenario import Scenario
from steelyard.trainers import comparison, evaluation
from steelyard.trainers.detail import at_load
from steelyard.trainers.results import record


def run_study(policies, scenarios=("cluster-a-cpu",), seeds=range(4), threads=1, **options):
    study = evaluation.Study(
        scenarios=[Scenario.load(name) for name in scenarios],
        contenders=rules.parse_policies(policies),
        seeds=seeds,
        threads=threads,
        **options,
    )
    return evaluation.run_cells(study, evaluation.prepare(study))


def without_time(rows):
    return [{key: value for key, value in row.items() if key != "cpu_s"} for row in rows]


def test_rows_come_in_order_and_policies_meet_the_same_flows():
    rows = run_study(["lsq", "sed"], ["cluster-a-cpu", "cluster-b-cpu"], range(3, 6))
    expected = [
        (s, p, k) for s in ("cluster-a-cpu", "cluster-b-cpu") for p in ("lsq", "sed") for k in (3, 4, 5)
    ]
    assert [(row["scenario"], row["policy"], row["seed"]) for row in rows] == expected
    flows = np.array([row["flows"] for row in rows]).reshape(2, 2, 3)
    assert np.array_equal(flows[:, 0], flows[:, 1])
    assert len(set(flows[0, 0])) > 1


def test_rows_do_not_depend_on_threads_or_chunks(monkeypatch):
    once = without_time(run_study(["sed", "hlb"], seeds=range(11)))
    monkeypatch.setattr(evaluation, "_CHUNK_S", 0.0)
    again = without_time(run_study(["sed", "hlb"], seeds=range(11), threads=3))
    assert once == again


def test_chunks_cover_every_seed_once(monkeypatch):
    """However fast the machine seems to be."""
    monkeypatch.setattr(native, "simulate", lambda config, rule, seeds, **options: list(seeds))
    for chunk_s in (0.0, 1e-9, 1.0, 1e9):
        monkeypatch.setattr(evaluation, "_CHUNK_S", chunk_s)
        for total in (1, 2, 7, 100):
            parts = evaluation.simulate_seeds(None, None, range(5, 5 + total), 3, "uncensored")
            assert [seed for part in parts for seed in part] == list(range(5, 5 + total))


def test_progress_ends_at_the_total():
    calls = []
    study = evaluation.Study([Scenario.load("cluster-a-cpu")], rules.parse_policies(["lsq", "sed"]), range(5))
    evaluation.run_cells(study, evaluation.prepare(study), lambda *call: calls.append(call))
    assert calls[-1][:2] == (10, 10)
    assert [done for done, _, _ in calls] == sorted(done for done, _, _ in calls)


def test_peer_convention_drops_flows_in_flight():
    """It cannot count more flows than arrive, and censoring the long ones makes the mean smaller."""
    ours = run_study(["ecmp"], seeds=range(20))
    peer = run_study(["ecmp"], seeds=range(20), convention="peer")
    assert all(p["flows"] <= o["flows"] for p, o in zip(peer, ours, strict=True))
    assert sum(p["flows"] for p in peer) < sum(o["flows"] for o in ours)
    assert np.mean([p["sojourn_mean_s"] for p in peer]) < np.mean([o["sojourn_mean_s"] for o in ours])


def test_every_rule_by_name_runs():
    names = [name for name in rules.rule_names() if not name.startswith(rules.TUNED)]
    rows = run_study(names, seeds=range(1))
    assert [row["policy"] for row in rows] == names
    assert all(row["flows"] > 1000 for row in rows)


def test_learner_is_all_its_training_runs(tmp_path):
    for name in ("seed2", "seed10"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        (tmp_path / name / "policy.bin").write_bytes(policy_blob(8))
    (tmp_path / "notes").mkdir()
    rows = run_study(["lsq", f"mine={tmp_path}"], seeds=range(3))
    learned = [row for row in rows if row["contender"] == "mine"]
    assert [(row["policy"], row["run"]) for row in learned] == [("mine/seed10", 0)] * 3 + [
        ("mine/seed2", 1)
    ] * 3
    assert comparison.matrix(rows, "cluster-a-cpu", "mine", "sojourn_mean_s").shape == (2, 3)


def test_policy_of_zero_actions_is_sed_with_equal_weights(tmp_path):
    """tanh(0) = 0 is weight 1 for every server, so the blob decides as lsq."""
    path = tmp_path / "policy.bin"
    path.write_bytes(policy_blob(8))
    rows = run_study(["lsq", str(path)])
    sojourn = np.array([row["sojourn_mean_s"] for row in rows]).reshape(2, -1)
    assert np.array_equal(sojourn[0], sojourn[1])


def test_a_rule_wins_over_a_file_of_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sed").write_text("not a policy")
    assert rules.parse_policy("sed").members[0].source == "sed"
    assert rules.parse_policy("x=./sed").members[0].source == "sed"


def test_labels_must_differ():
    with pytest.raises(ValueError, match="'sed' is given twice"):
        rules.parse_policies(["sed", "sed=lsq"])


def test_gap_to_a_reference_is_paired():
    rows = run_study(["lsq", "sed", "oracle"], seeds=range(40))
    lines = {line.contender: line for line in comparison.summarise(rows, ("oracle",))}
    assert lines["oracle"].gaps == {}
    gap = lines["lsq"].gaps["oracle"]
    assert gap.difference_s.low > 0
    difference = comparison.matrix(rows, "cluster-a-cpu", "lsq", "sojourn_mean_s") - comparison.matrix(
        rows, "cluster-a-cpu", "oracle", "sojourn_mean_s"
    )
    assert gap.difference_s.value == pytest.approx(difference.mean())
    standard_error = difference.std(ddof=1) / np.sqrt(difference.size)
    assert gap.difference_s.high - gap.difference_s.low == pytest.approx(2 * 1.96 * standard_error, rel=0.2)
    assert gap.improvement.value < 0.5


def test_scores_are_relative_to_the_reference():
    rows = run_study(["lsq", "sed"], seeds=range(10))
    overall = {result.contender: result for result in comparison.overall(rows, "sed")}
    assert (overall["sed"].score.low, overall["sed"].score.high) == (1.0, 1.0)
    assert overall["lsq"].score.value < overall["sed"].score.value
    matrix = comparison.improvement_matrix(rows)
    assert np.allclose(matrix + matrix.T, 1.0)
    assert np.allclose(np.diag(matrix), 0.5)


def test_record_is_a_row_without_its_extras():
    (row,) = run_study(["sed"], seeds=range(1))
    assert set(record(row)) < set(row)
    assert record(row)["policy"] == "sed"


@pytest.mark.parametrize("name", ["cluster-a-cpu", "cluster-a-50", "large-6x20"])
def test_scaled_scenario_offers_the_load(name):
    load = at_load(Scenario.load(name), 0.7).offered_load()
    assert max(load.cpu, load.io) == pytest.approx(0.7)


def test_scaled_mmpp_offers_the_load():
    tree = Scenario.load("cluster-a-cpu").to_dict()
    tree["workload"]["arrival"] = {"kind": "mmpp", "rates": [5.0, 30.0], "mean_stay_s": [2.0, 1.0]}
    assert at_load(Scenario.from_dict(tree), 0.8).offered_load().cpu == pytest.approx(0.8)
