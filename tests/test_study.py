"""Study files, training runs and cells of a study: what they accept, what they are told apart by."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from zero_policy import policy_blob

from steelyard.benchmarks import cells, study_report, study_runs
from steelyard.benchmarks.study import load_study, study_names
from steelyard.benchmarks.study_entry import study_keys
from steelyard.envs.errors import UserError

SMALL = {
    "title": '"T"',
    "seeds": '"0:3"',
    "reference": '"sed"',
    "policies": '["lsq", "sed", "mine"]',
}
LEARNER = {
    "name": '"mine"',
    "algo": '"rlb-sac"',
    "scenario": '"cluster-a-cpu"',
    "episodes": "4",
    "seeds": '"0:2"',
}
CASE = {"scenario": '"cluster-a-cpu"', "set": '["episode.horizon_s=5"]'}
QUOTED = {"case": '"cluster-a-cpu"', "policy": '"sed"', "metric": '"flows"', "value": "3", "source": '"s"'}


def table(name: str, keys: dict[str, str]) -> str:
    return f"\n[[{name}]]\n" + "".join(f"{key} = {value}\n" for key, value in keys.items())


def study_text(top=(), learner=(), case=(), quoted=(), more="") -> str:
    head = "".join(f"{key} = {value}\n" for key, value in {**SMALL, **dict(top)}.items())
    parts = [
        table("learners", {**LEARNER, **dict(learner)}),
        table("cases", {**CASE, **dict(case)}),
        table("quoted", {**QUOTED, **dict(quoted)}),
    ]
    return head + "".join(parts) + more


def load(folder: Path, **changes):
    path = folder / "mine.toml"
    path.write_text(study_text(**changes))
    return load_study(str(path))


@pytest.mark.parametrize("name", study_names())
def test_every_study_of_the_project_reads(name):
    """Its scenarios, policies, metrics and quoted cases exist."""
    study = load_study(name)
    assert study.cases
    assert study.entry.reference in study.policies()
    assert len(study.entry.seeds) > 1
    for learner in study.learners:
        assert len(learner.entry.seeds) > 1


def test_keys_are_documented():
    page = (Path(__file__).parent.parent / "docs" / "studies.md").read_text()
    for key, _, default, _, meaning in study_keys():
        assert any(
            line.startswith(f"| `{key}` |") and line.endswith(f"| {meaning} |") for line in page.splitlines()
        ), key
        if default == "required" and "." not in key:
            assert f"| `{key}` | required |" in page


def test_a_study_is_what_its_file_says(tmp_path):
    more = table("cases", {"scenario": '"moderate-2x7"', "name": '"other"', "policies": '["ecmp", "sed"]'})
    study = load(tmp_path, case={"policies_add": '["hlb", "sed"]', "group": '"g"'}, more=more)
    first, second = study.cases
    assert (first.name, second.name, first.group) == ("cluster-a-cpu", "other", "g")
    assert first.policies == ("lsq", "sed", "mine", "hlb")
    assert second.policies == ("ecmp", "sed")
    assert first.scenario.episode.horizon_s == 5
    assert study.policies() == ["lsq", "sed", "mine", "hlb", "ecmp"]
    assert study.entry.seeds == range(3)
    assert study.learners[0].entry.seeds == range(2)


def test_scenarios_and_policies_may_lie_beside_the_study(tmp_path, monkeypatch):
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "own.toml").write_text(load_study("smoke").cases[0].scenario.to_toml())
    (tmp_path / "p.bin").write_bytes(policy_blob(8))
    changes = {
        "case": {"scenario": '"s/own.toml"', "name": '"cluster-a-cpu"'},
        "top": {"policies": '["lsq", "sed", "mine", "zero=p.bin"]'},
    }
    monkeypatch.chdir(tmp_path)
    study = load(tmp_path, **changes)
    assert study.cases[0].source == "s/own.toml"
    assert study.policies() == ["lsq", "sed", "mine", "zero"]
    assert Path(study.sources["zero"]).samefile(tmp_path / "p.bin")


BAD = {
    "unknown key": ({"top": {"seed": '"0:3"'}}, "seed: unknown key (did you mean 'seeds'"),
    "unknown key of a learner": (
        {"learner": {"episode": "3"}},
        "learners.0.episode: unknown key (did you mean",
    ),
    "unknown key of a case": ({"case": {"sets": "[]"}}, "cases.0.sets: unknown key (did you mean 'set'"),
    "unknown key of a quote": (
        {"quoted": {"vaule": "3"}},
        "quoted.0.vaule: unknown key (did you mean 'value'",
    ),
    "unknown policy": ({"top": {"policies": '["lqs", "sed", "mine"]'}}, "'lqs' (did you mean 'lsq'"),
    "unknown scenario": ({"case": {"scenario": '"cluster-a-cpus"'}}, "cases.0: unknown scenario"),
    "unknown reference": ({"top": {"reference": '"oracle"'}}, "unknown reference 'oracle'"),
    "unknown metric": ({"top": {"metrics": '["sojourn"]'}}, "unknown metric 'sojourn'"),
    "unknown quoted metric": (
        {"quoted": {"metric": '"flow"'}},
        "unknown metric 'flow' (did you mean 'flows'",
    ),
    "unknown quoted case": ({"quoted": {"case": '"cluster-b-cpu"'}}, "unknown quoted.0.case 'cluster-b-cpu'"),
    "unknown quoted policy": ({"quoted": {"policy": '"gsq"'}}, "unknown quoted.0.policy 'gsq'"),
    "unknown algorithm": (
        {"learner": {"algo": '"qmxi"'}},
        "unknown learners.0.algo 'qmxi' (did you mean 'qmix'?)",
    ),
    "algorithm of the other engine": (
        {"learner": {"algo": '"impala"'}},
        "unknown learners.0.algo 'impala'",
    ),
    "unknown engine": ({"learner": {"engine": '"ray"'}}, "unknown learners.0.engine 'ray'"),
    "bad seeds": ({"top": {"seeds": '"5:5"'}}, "seeds = '5:5': must be"),
    "bad training seeds": ({"learner": {"seeds": '"0:1001"'}}, "learners.0.seeds = '0:1001': must be"),
    "bad episodes": ({"learner": {"episodes": "0"}}, "learners.0.episodes = 0: must be"),
    "bad override": ({"case": {"set": '["pool.balancer=2"]'}}, "cases.0: pool.balancer: unknown key"),
    "bad hyper": ({"learner": {"train_set": '["algo.x"]'}}, "must be algo.NAME=VALUE"),
    "rule's name": ({"learner": {"name": '"lsq"'}}, "'lsq' is the name of a rule"),
    "idle learner": ({"top": {"policies": '["lsq", "sed"]'}}, "learners.0: 'mine' is in no case's policies"),
    "twice": ({"top": {"policies": '["sed", "sed", "mine"]'}}, "'sed' is given twice"),
    "case twice": ({"more": table("cases", CASE)}, "cases: 'cluster-a-cpu' is given twice"),
    "wrong pool": (
        {"more": table("cases", {"scenario": '"moderate-2x7"'})},
        "case moderate-2x7: mine is trained for 8 servers, moderate-2x7 has 7",
    ),
    "no TOML": ({"more": "["}, "study "),
}


@pytest.mark.parametrize(("changes", "message"), BAD.values(), ids=BAD.keys())
def test_bad_input_is_one_line_that_names_the_key(tmp_path, changes, message):
    with pytest.raises(UserError) as error:
        load(tmp_path, **changes)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_unknown_study_is_named_with_those_there_are():
    with pytest.raises(UserError, match=r"unknown study 'smok' .did you mean 'smoke'"):
        load_study("smok")
    with pytest.raises(UserError, match=r"study missing.toml: cannot be read"):
        load_study("missing.toml")


def runs(study, root):
    return study_runs.runs_of(study.learners[0], root)


def test_runs_are_told_apart_by_what_decides_their_course(tmp_path):
    base = study_runs.directory_name(load(tmp_path).learners[0])
    same = load(tmp_path, learner={"name": '"mine"', "seeds": '"3:9"', "note": '"n"'})
    assert study_runs.directory_name(same.learners[0]) == base
    changed = [
        {"episodes": "5"},
        {"algo": '"distr-lb"'},
        {"algo": '"ippo"'},
        {"algo": '"ippo"', "engine": '"rllib"'},
        {"train_set": '["algo.gamma=0.9"]'},
        {"train_set": '["workload.arrival.rate=9"]'},
    ]
    names = {study_runs.directory_name(load(tmp_path, learner=each).learners[0]) for each in changed}
    assert len(names | {base}) == len(changed) + 1


def test_the_command_of_a_run(tmp_path):
    study = load(
        tmp_path,
        learner={"algo": '"sac"', "engine": '"rllib"', "train_set": '["algo.lr=0.1", "pool.balancers=3"]'},
    )
    words = runs(study, tmp_path)[1].arguments(resume=True)
    text = " ".join(words)
    assert text.startswith("train --scenario cluster-a-cpu --algo sac --engine rllib --run ")
    assert "--episodes 4 --seed 1 --set algo.lr=0.1 --set pool.balancers=3" in text
    assert text.endswith("--threads 1 --quiet --resume")
    assert "--engine" not in runs(load(tmp_path), tmp_path)[0].command()


def made_run(run, episodes: int, **config) -> None:
    """A run directory as training leaves it."""
    (run.directory / "checkpoint").mkdir(parents=True)
    held = {"algorithm": "rlb-sac", "seed": run.seed, "hyper": {"gamma": 0.99}}
    held["scenario"] = run.learner.scenario.to_dict()
    (run.directory / "config.json").write_text(json.dumps({**held, **config}))
    state = {"version": 1, "state": {"trainer": {"episodes": episodes}}}
    (run.directory / "checkpoint" / "state.json").write_text(json.dumps(state))
    run.policy.write_bytes(policy_blob(8))


def test_a_run_is_finished_when_its_checkpoint_and_policy_are_there(tmp_path):
    run, other = runs(load(tmp_path), tmp_path)
    assert not study_runs.is_finished(run)
    made_run(run, 3)
    assert not study_runs.is_finished(run)
    assert study_runs.is_begun(run)
    made_run(other, 4)
    assert study_runs.is_finished(other)
    os.utime(other.policy, ns=(1, 1))  # a policy of an earlier checkpoint
    assert not study_runs.is_finished(other)


def test_a_budget_says_how_far_a_run_has_come(tmp_path):
    run, _ = runs(load(tmp_path), tmp_path)
    made_run(run, 1)
    spent = {"episodes": 4, "env_steps": 480, "cpu_s": 1.5, "wall_s": 2.0, "bytes_exchanged": 0}
    assert study_runs.budget(run)["cpu_s"] is None
    (run.directory / "budget.json").write_text(json.dumps(spent))
    os.utime(run.policy)
    assert study_runs.is_finished(run)
    assert study_runs.budget(run) == spent


def test_another_run_in_the_place_is_an_error_that_names_the_key(tmp_path):
    study = load(tmp_path, learner={"train_set": '["algo.gamma=0.9"]'})
    run, other = runs(study, tmp_path)
    made_run(run, 4)
    with pytest.raises(UserError, match=r"hyper.gamma = 0.99, learner 'mine' in the study 0.9; move"):
        study_runs.check_run(run)
    changed = study.learners[0].scenario.with_overrides(["pool.balancers=5"]).to_dict()
    made_run(other, 4, hyper={"gamma": 0.9}, scenario=changed)
    with pytest.raises(UserError, match=r"scenario.pool.balancers = 5"):
        study_runs.check_run(other)


def test_a_key_that_scenarios_gain_later_does_not_make_another_run(tmp_path):
    run, _ = runs(load(tmp_path), tmp_path)
    known = run.learner.scenario.to_dict()
    del known["observation"]["reservoir_size"]
    made_run(run, 4, scenario=known)
    study_runs.check_run(run)


def test_what_is_no_run_is_left_alone(tmp_path):
    run, other = runs(load(tmp_path), tmp_path)
    run.directory.mkdir(parents=True)
    (run.directory / "thesis.txt").write_text("precious")
    with pytest.raises(UserError, match="not empty and no run directory"):
        study_runs.check_run(run)
    other.directory.mkdir()
    (other.directory / "manifest.json").write_text("{}")
    assert not study_runs.is_begun(other)
    study_runs.clear_unstarted(other)
    assert list(other.directory.iterdir()) == []


def test_the_learning_curve_of_a_learner_is_the_mean_over_its_runs(tmp_path):
    one, other = runs(load(tmp_path), tmp_path)
    assert study_report.mean_curve([one, other]) is None
    for run, sojourns in ((one, (2.0, 4.0)), (other, (4.0, 8.0))):
        made_run(run, 4)
        lines = [f"{2 * k + 2},{sojourn}\n" for k, sojourn in enumerate(sojourns)]
        (run.directory / "progress.csv").write_text("episode,sojourn_mean_s\n" + "".join(lines))
    curve = study_report.mean_curve([one, other])
    assert curve.exploring[0].tolist() == [2, 4]
    assert curve.exploring[1].tolist() == [3, 6]


def cell_of(study, label: str, tmp_path, **changes):
    held = {learner.name: runs(study, tmp_path) for learner in study.learners}
    (cell,) = cells.cells_of(study, study.cases, [label], held)
    return replace(cell, **changes)


def test_a_cell_is_computed_once_and_again_when_an_input_changes(tmp_path, monkeypatch):
    computed = []
    compute = cells.compute
    monkeypatch.setattr(cells, "compute", lambda cell: computed.append(cell.name) or compute(cell))
    out = tmp_path / "cells"
    out.mkdir()
    cell = cell_of(load(tmp_path), "lsq", tmp_path)
    for _ in range(2):
        assert cells.evaluate("--out", out, [cell], 1) == []
    assert computed == ["cluster-a-cpu, lsq"]
    first = cells.scores(out, [cell]).matrix("cluster-a-cpu", "lsq", "sojourn_mean_s")
    assert first.shape == (1, 3)
    changed = replace(cell, seeds=range(4))
    assert cells.stored(out, changed, changed.digest()) is None
    cells.evaluate("--out", out, [changed], 1)
    again = cells.scores(out, [changed]).matrix("cluster-a-cpu", "lsq", "sojourn_mean_s")
    assert (again[:, :3] == first).all()
    assert len(computed) == 2
    digests = {cell.digest(), changed.digest(), replace(cell, convention="peer").digest()}
    other = load(tmp_path, case={"set": '["episode.horizon_s=6"]'})
    assert len(digests | {cell_of(other, "lsq", tmp_path).digest()}) == 4
    monkeypatch.setattr(cells, "native_sha256", lambda: "another simulator")
    assert cell.digest() not in digests


def test_a_damaged_cell_is_computed_again(tmp_path):
    cell = cell_of(load(tmp_path), "sed", tmp_path)
    (tmp_path / cell.file).write_text('{"digest": ')
    assert cells.stored(tmp_path, cell, cell.digest()) is None
    cells.evaluate("--out", tmp_path, [cell], 1)
    assert cells.stored(tmp_path, cell, cell.digest()) is not None


def test_a_cell_of_a_learner_follows_its_policy_file(tmp_path):
    study = load(tmp_path)
    for run in runs(study, tmp_path):
        made_run(run, 4)
    held = {"mine": runs(study, tmp_path)}
    first, second = cells.cells_of(study, study.cases, ["mine"], held)
    assert first.file != second.file
    before = first.digest()
    held["mine"][0].policy.write_bytes(policy_blob(8, actors=2))
    assert first.digest() != before


def test_a_policy_that_does_not_fit_fails_alone(tmp_path):
    study = load(tmp_path, case={"set": '["pool.balancers=3"]'})
    for run in runs(study, tmp_path):
        made_run(run, 4)
    runs(study, tmp_path)[0].policy.write_bytes(policy_blob(8, actors=2))
    held = {"mine": runs(study, tmp_path)}
    todo = cells.cells_of(study, study.cases, ["mine", "sed"], held)
    out = tmp_path / "cells"
    out.mkdir()
    (failure,) = cells.evaluate("--out", out, todo, 2)
    assert "2 actors, the scenario has 3 load balancers" in str(failure)
    found = cells.scores(out, todo)
    assert found.policies("cluster-a-cpu") == ["sed", "mine"]
    assert found.matrix("cluster-a-cpu", "mine", "flows").shape == (1, 3)


def test_names_that_look_alike_have_files_of_their_own(tmp_path):
    cell = cell_of(load(tmp_path), "lsq", tmp_path)
    assert len({replace(cell, case=name).file for name in ("a b", "a_b", "a/b")}) == 3
