"""The numbers and pages of a study against statistics.py and by hand; the leaderboard."""

import csv
import html.parser
import json
import re
import shlex

import numpy as np
import pytest

from steelyard.benchmarks import leaderboard, page, study_tables, summary
from steelyard.benchmarks.cells import Scores
from steelyard.benchmarks.study import load_study
from steelyard.trainers import cli
from steelyard.trainers import statistics as st

STUDY = """
title = "Rules <and> nothing | else"
seeds = "0:5"
reference = "sed"
policies = ["ecmp", "lsq", "sed", "oracle"]

[[cases]]
scenario = "cluster-a-cpu"
set = ["episode.horizon_s=10"]

[[cases]]
name = "b one"
group = "pools"
scenario = "cluster-b-cpu"
set = ["episode.horizon_s=10", "pool.balancers=3"]
policies_add = ["hlb"]

[[quoted]]
case = "cluster-a-cpu"
policy = "sed"
metric = "waiting_mean_s"
value = 2.0
spread = 0.5
source = "a paper"
note = "a note"
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Results of a study of rules, with its leaderboard."""
    folder = tmp_path_factory.mktemp("study")
    (folder / "rules.toml").write_text(STUDY)
    line = f"study {folder}/rules.toml --out {folder}/out --runs {folder}/runs --jobs 1 --quiet"
    assert cli.main(line.split()) == 0
    assert cli.main(["leaderboard", str(folder / "out"), "--quiet"]) == 0
    return folder / "out"


@pytest.fixture(scope="module")
def found(results):
    return json.loads((results / "summary.json").read_text())


def columns_of(results, case: str, policy: str) -> dict:
    (path,) = (results / "cells").glob(f"{case}--{policy}--*.json")
    return json.loads(path.read_text())["columns"]


def test_numbers_are_those_of_the_statistics(results, found):
    sed = np.array([columns_of(results, "cluster-a-cpu", "sed")["sojourn_mean_s"]])
    lsq = np.array([columns_of(results, "cluster-a-cpu", "lsq")["sojourn_mean_s"]])
    held = found["cases"]["cluster-a-cpu"]["policies"]["lsq"]
    assert held["metrics"]["sojourn_mean_s"]["iqm"]["value"] == pytest.approx(float(st.iqm([lsq])))
    assert held["metrics"]["sojourn_mean_s"]["std"] == pytest.approx(lsq.std(ddof=1))
    gap = held["versus"]["sed"]
    expected = st.bootstrap(st.difference, [lsq], [sed])
    assert (gap["difference"]["value"], gap["difference"]["low"]) == (expected.value, expected.low)
    assert gap["improvement"]["value"] == pytest.approx(np.mean(sed > lsq.T) + np.mean(sed == lsq.T) / 2)
    assert set(held["versus"]) == {"sed", "oracle"}
    assert "sed" not in found["cases"]["cluster-a-cpu"]["policies"]["sed"]["versus"]


def test_scores_over_all_cases_are_ratios_to_the_reference_on_the_same_flows(results, found):
    ratios = []
    for case in ("cluster-a-cpu", "b_one"):
        sed, lsq = (np.array(columns_of(results, case, p)["sojourn_mean_s"]) for p in ("sed", "lsq"))
        ratios.append((sed / lsq)[None, :])
    overall = found["overall"]
    assert overall["lsq"]["score"]["value"] == pytest.approx(float(st.iqm(ratios)))
    assert overall["sed"]["score"] == {"value": 1.0, "low": 1.0, "high": 1.0}
    assert overall["hlb"]["cases"] == ["b one"]
    assert set(overall["ecmp"]["versus"]) == {"sed", "oracle", "lsq"}
    assert overall["oracle"]["score"]["low"] > 1 > overall["ecmp"]["score"]["high"]


def two_runs() -> Scores:
    """lsq as a learner with two training runs, and sed, on cases a and b of three seeds."""
    rng = np.random.default_rng(0)

    def run() -> dict:
        values = {
            name: list(rng.uniform(1, 2, 3)) for name in ("sojourn_mean_s", "sojourn_p99_s", "jain_mean")
        }
        return {**values, "flows": [10, 0, 10], "rejected": [1, 0, 5], "digest": ["a", "b", "c"]}

    cases = ("cluster-a-cpu", "b one")
    return Scores({case: {"lsq": [run(), run()], "sed": [run()]} for case in cases})


def study_of(tmp_path, metrics: str = '["sojourn_mean_s"]'):
    """The study above, ranked by other metrics, without the paper."""
    text = STUDY.partition("[[quoted]]")[0].replace("policies =", f"metrics = {metrics}\npolicies =", 1)
    (tmp_path / "s.toml").write_text(text)
    return load_study(str(tmp_path / "s.toml"))


def test_training_runs_are_rows_and_shares_are_of_flows(tmp_path):
    scores = two_runs()
    assert scores.matrix("b one", "lsq", "sojourn_mean_s").shape == (2, 3)
    assert scores.matrix("b one", "sed", "rejected_share").tolist() == [[0.1, 0.0, 0.5]]
    assert "digest" not in scores.metrics("b one", "sed")
    found = summary.summarise(study_of(tmp_path), scores)
    assert found["cases"]["b one"]["policies"]["lsq"]["runs"] == 2
    assert found["cases"]["b one"]["missing"] == ["ecmp", "oracle", "hlb"]
    assert set(found["overall"]) == {"lsq", "sed"}


def test_more_is_better_for_a_fairness_index(tmp_path):
    study = study_of(tmp_path, '["jain_mean"]')
    scores = two_runs()
    own, base = (scores.matrix("b one", p, "jain_mean") for p in ("lsq", "sed"))
    assert np.allclose(summary.strata(study, scores, "lsq", "jain_mean")["b one"], own / base)
    found = summary.summarise(study, scores)["cases"]["b one"]["policies"]
    better = (own.ravel()[:, None] > base.ravel()).mean()
    assert found["lsq"]["versus"]["sed"]["improvement"]["value"] == pytest.approx(better)
    order = summary.ranked(found, "jain_mean")
    values = [found[name]["metrics"]["jain_mean"]["iqm"]["value"] for name in order]
    assert values == sorted(values, reverse=True)


def test_the_manifest_says_how_to_repeat_it(results):
    manifest = json.loads((results / "manifest.json").read_text())
    assert manifest["study"]["name"] == "rules"
    assert manifest["seeds"] == {"first": 0, "end": 5}
    assert manifest["cases"]["b one"]["set"] == ["episode.horizon_s=10", "pool.balancers=3"]
    assert manifest["cases"]["b one"]["scenario"]["pool"]["balancers"] == 3
    assert manifest["policies"]["hlb"] == {"rule": "hlb"}
    assert len(manifest["cells"]) == 9
    assert shlex.split(manifest["command"])[:2] == ["steelyard", "study"]


def test_tables_have_every_policy_and_the_paper_beside_ours(results, found):
    text = (results / "table.md").read_text()
    assert text.startswith("# Rules \\<and> nothing \\| else\n")
    for title in ("## cluster-a-cpu", "## pools", "## All cases", "## Beside the papers"):
        assert title in text
    waiting = found["cases"]["cluster-a-cpu"]["policies"]["sed"]["metrics"]["waiting_mean_s"]["mean"]["value"]
    row = next(line for line in text.splitlines() if "| a paper |" in line)
    assert "2.000 ± 0.5000" in row
    assert f"{100 * (waiting / 2 - 1):+.1f}" in row
    rows = study_tables.case_table(found, "cluster-a-cpu").rows
    assert [row[0] for row in rows] == ["oracle", "sed", "lsq", "ecmp"]


@pytest.mark.parametrize("name", ["report.html", "index.html"])
def test_html_stands_alone(results, name):
    text = (results / name).read_text()
    targets = re.findall(r'(?:src|href)="([^"]*)"', text)
    assert all(each.startswith(("data:", "#")) or each == "manifest.json" for each in targets)
    assert text.count("<img ") == text.count('src="data:image/png;base64,') >= 1
    seen = []
    parser = html.parser.HTMLParser()
    parser.handle_starttag = lambda tag, attrs: seen.append(tag)
    parser.feed(text)
    assert seen.count("table") >= 1


def test_every_number_of_the_leaderboard_leads_to_a_command_that_gives_it(
    results, found, tmp_path, monkeypatch
):
    text = (results / "README.md").read_text()
    anchors = set(re.findall(r'<a id="([^"]+)"></a>', text))
    rows = [line for line in text.splitlines() if re.match(r"\| [0-9]+ \|", line)]
    assert [row.split("|")[2].split("]")[0].strip(" [") for row in rows[:2]] == ["oracle", "sed"]
    targets = re.findall(r"\]\(#([^)]+)\)", "".join(rows))
    assert len(targets) >= 4 * len(rows)
    assert set(targets) <= anchors
    section = text.split('<a id="lsq--on--b-one"></a>')[1]
    command = re.search(r"```bash\n(.*)\n```", section)[1]
    assert "--set pool.balancers=3" in command
    monkeypatch.chdir(tmp_path)
    assert cli.main([*shlex.split(command)[1:], "--quiet", "--table", "rows.csv"]) == 0
    with open("rows.csv", newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row["policy"] == "lsq"]
    values = np.array([[float(row["sojourn_mean_s"]) for row in rows]])
    held = found["cases"]["b one"]["policies"]["lsq"]["metrics"]["sojourn_mean_s"]["iqm"]["value"]
    assert float(st.iqm([values])) == held


def test_the_items_of_a_description_are_told_apart():
    assert page.paragraphs("\nClaims, and\nours:\n- the one\n  thing\n- the other\n\nMore - or not.\n") == [
        "Claims, and\nours:",
        "- the one\n  thing",
        "- the other",
        "More - or not.",
    ]


def board_of(results) -> leaderboard.Board:
    return leaderboard.load(results)


def test_learners_that_do_not_beat_lsq_are_shown_as_such(results):
    board = board_of(results)
    entry = {
        "algo": "rlb-sac",
        "engine": "local",
        "source": "s",
        "note": "Tried hard.",
        "runs": [],
        "episodes": 1,
    }
    entry |= {"seeds": {"first": 0, "end": 5}, "directory": "runs/x"}
    manifest = {**board.manifest, "learners": {"ecmp": entry, "sed": {**entry, "algo": "centr-lb"}}}
    board = leaderboard.Board(board.summary, manifest)
    assert "".join(leaderboard.losers(board)).endswith("of scores: ecmp. ecmp: Tried hard.")
    assert leaderboard.told(board, "ecmp") == "own measurements"
    assert "all balancers" in leaderboard.told(board, "sed")
    assert "--policy ecmp=runs/x" in leaderboard.evaluate_command(board, "ecmp", "b one")


def test_messages_per_flow_are_shown_if_they_are_counted(results):
    board = board_of(results)
    asked = leaderboard.ranking_table(board)
    column = asked.header.index("messages per flow")
    assert {float(page.words(row[column])) for row in asked.rows} == {0}  # rules that ask no server anything
    for case in board.summary["cases"].values():
        for policy in case["policies"].values():
            policy["means"]["messages"] = 3 * policy["means"]["arrived"]
    table = leaderboard.ranking_table(board)
    cell = table.rows[0][table.header.index("messages per flow")]
    assert float(page.words(cell)) == 3
    for case in board.summary["cases"].values():
        for policy in case["policies"].values():
            del policy["means"]["messages"]
    assert "messages per flow" not in leaderboard.ranking_table(board).header


def test_budgets_are_means_of_finished_runs():
    runs = [
        {"finished": True, "budget": {"env_steps": 1000, "cpu_s": 10.0, "bytes_exchanged": 2e6}},
        {"finished": True, "budget": {"env_steps": 2000, "cpu_s": 20.0, "bytes_exchanged": 4e6}},
        {"finished": False, "budget": {"env_steps": 9, "cpu_s": 9, "bytes_exchanged": 9}},
    ]
    assert study_tables.budget_cells({"runs": runs}) == ["1,500", "15", "3.0"]
    runs[0]["budget"]["cpu_s"] = None
    assert study_tables.budget_cells({"runs": runs}) == ["1,500", "", "3.0"]


def test_rules_of_the_leaderboard_say_what_they_are_told():
    text = (load_study("smoke").base / "leaderboard.toml").read_text()
    named = re.search(r"^policies = \[(.*?)\]", text, re.DOTALL | re.MULTILINE)[1]
    learners = re.findall(r'^name = "(.*)"', text, re.MULTILINE)
    rules = set(re.findall(r'"([^"]+)"', named)) - set(learners)
    assert {"ecmp", "prequal", "oracle"} <= rules
    assert {rule for rule in rules if not rule.startswith("tuned-")} <= set(leaderboard.TOLD)


def test_the_top_goes_between_the_marks_and_nowhere_else(results, tmp_path, capsys):
    readme = tmp_path / "R.md"
    readme.write_text(f"before\n{leaderboard.BEGIN}\nstale\n{leaderboard.END}\nafter\n")
    line = ["leaderboard", str(results), "--readme", str(readme), "--top", "2", "--quiet"]
    assert cli.main(line) == 0
    text = readme.read_text()
    assert text.startswith(f"before\n{leaderboard.BEGIN}\n|")
    assert text.endswith(f"|\n{leaderboard.END}\nafter\n")
    assert "stale" not in text
    assert len(re.findall(r"^\| [0-9] \|", text, re.MULTILINE)) == 2
    assert cli.main(line) == 0
    assert readme.read_text() == text
    readme.write_text("no marks")
    assert cli.main(line) == 2
    assert "must hold <!-- leaderboard -->" in capsys.readouterr().err
    assert readme.read_text() == "no marks"
    assert cli.main(["leaderboard", str(tmp_path)]) == 2
    assert "no results of a study" in capsys.readouterr().err


def test_committed_readme_has_the_marks():
    readme = load_study("smoke").base.parent.parent / "README.md"
    if not readme.is_file():
        pytest.skip("installed without the README")
    assert readme.read_text().count(leaderboard.BEGIN) == readme.read_text().count(leaderboard.END) == 1
