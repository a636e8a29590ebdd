"""trainers/report.py, plots.py and results.py: files that stand alone and say how they came to be."""

import csv
import json
import re

import numpy as np
import pyarrow.parquet
import pytest

from steelyard.envs.errors import UserError
from steelyard.envs.records import RECORD_KEYS
from steelyard.trainers import cli, plots, results, tune
from steelyard.trainers.report import learning_curve

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A small comparison on two scenarios, with a training run that has a learning curve."""
    directory = tmp_path_factory.mktemp("compare")
    run = directory / "run"
    run.mkdir()
    (run / "progress.csv").write_text(
        "episode,sojourn_mean_s\n" + "".join(f"{k},{2 - k / 50}\n" for k in range(40))
    )
    line = (
        "compare --policy lsq --policy hlb --seeds 0:6 --quiet --load 0.6 --load 0.8 --scenario cluster-a-cpu"
        f" --scenario cluster-capacity-drop --learning {run}"
        f" --out {directory / 'report'} --json {directory / 'r.json'}"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tune, "_EPISODES", (2, 2))
        patch.setattr(tune, "_searched", {})
        assert cli.main(line.split()) == 0
    return directory / "report"


def test_page_stands_alone(report):
    page = (report / "report.html").read_text()
    assert not re.search(r'(src|href)="(?!data:)', page)
    assert "http" not in re.sub(r'src="data:[^"]*"', "", page).replace("http-equiv", "")
    assert page.count("<img ") == page.count('src="data:image/png;base64,')


def test_figures_are_also_png_files(report):
    names = {path.stem for path in report.glob("*.png")}
    for scenario in ("cluster-a-cpu", "cluster-capacity-drop"):
        assert {
            f"{scenario}-{kind}" for kind in ("intervals", "cdf", "load", "imbalance", "weights")
        } <= names
    assert {"learning-curves", "profiles", "improvement"} <= names
    page = (report / "report.html").read_text()
    for name in names:
        assert f'<figure id="{name}">' in page
        assert (report / f"{name}.png").read_bytes().startswith(PNG)


def test_references_take_part_and_every_gap_is_shown(report):
    lines = json.loads((report / "summary.json").read_text())
    assert {line["contender"] for line in lines} == {"lsq", "hlb", "tuned-sed", "oracle"}
    for line in lines:
        assert set(line["gaps"]) == {"tuned-sed", "oracle"} - {line["contender"]}
        assert line["sojourn_s"]["low"] <= line["sojourn_s"]["value"] <= line["sojourn_s"]["high"]
    page = (report / "report.html").read_text()
    assert "vs tuned-sed" in page
    assert "vs oracle" in page


def test_manifest_is_enough_to_repeat_it(report):
    manifest = json.loads((report / "manifest.json").read_text())
    assert manifest["seeds"] == {"first": 0, "end": 6}
    assert set(manifest["scenarios"]) == {"cluster-a-cpu", "cluster-capacity-drop"}
    assert manifest["policies"]["tuned-sed"] == {"rule": "tuned-sed"}
    assert manifest["versions"]["steelyard"]
    assert manifest["convention"] == "uncensored"
    assert manifest["command"].startswith("steelyard compare --scenario cluster-a-cpu --scenario ")
    assert "--load 0.6 --load 0.8" in manifest["command"]


def test_records_are_the_same_everywhere(report):
    records = json.loads((report / "records.json").read_text())
    assert records == json.loads((report.parent / "r.json").read_text())
    with open(report / "rows.csv", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [float(row["sojourn_mean_s"]) for row in rows] == [record["sojourn_mean_s"] for record in records]
    assert [tuple(record) for record in records] == [RECORD_KEYS] * len(rows)


def test_marl_eval_file_has_one_value_per_seed_and_run(report):
    document = json.loads((report / "marl_eval.json").read_text())
    runs = document["steelyard"]["cluster-a-cpu"]["lsq"]
    assert list(runs) == ["run_0"]
    records = json.loads((report / "records.json").read_text())
    expected = [
        r["sojourn_mean_s"] for r in records if (r["scenario"], r["policy"]) == ("cluster-a-cpu", "lsq")
    ]
    assert runs["run_0"]["absolute_metrics"]["sojourn_mean_s"] == expected
    assert runs["run_0"]["step_0"]["step_count"] == 0


def test_parquet_and_csv_hold_the_same(tmp_path):
    for suffix in ("csv", "parquet"):
        args = ["evaluate", "--scenario", "cluster-a-cpu", "--seeds", "0:3", "--quiet"]
        assert cli.main([*args, "--table", str(tmp_path / f"rows.{suffix}")]) == 0
        assert (tmp_path / "rows.manifest.json").is_file()
    table = pyarrow.parquet.read_table(tmp_path / "rows.parquet").to_pylist()
    with open(tmp_path / "rows.csv", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(table) == 6
    assert [row["sojourn_p999_s"] for row in table] == [float(row["sojourn_p999_s"]) for row in rows]


def test_numbers_that_json_lacks_become_null(tmp_path):
    path = tmp_path / "x.json"
    results.write_json("--json", path, {"a": [np.float64("nan"), float("inf"), np.int64(3), 0.1]})
    assert json.loads(path.read_text()) == {"a": [None, None, 3, 0.1]}


def test_learning_curve_has_training_and_validation(tmp_path):
    text = "episode,sojourn_mean_s,eval_sojourn_s\n8,2.0,\n16,1.8,1.5\n24,1.7,\n"
    (tmp_path / "progress.csv").write_text(text)
    curve = learning_curve(tmp_path)
    assert [list(axis) for axis in curve.exploring] == [[8, 16, 24], [2.0, 1.8, 1.7]]
    assert [list(axis) for axis in curve.evaluated] == [[16], [1.5]]
    assert curve.bold() is curve.evaluated


def test_learning_curve_of_a_run_without_progress(tmp_path):
    assert learning_curve(tmp_path) is None
    (tmp_path / "progress.csv").write_text("episode,sojourn_mean_s\n")
    assert learning_curve(tmp_path) is None
    (tmp_path / "progress.csv").write_text("episode,sojourn_mean_s\n1,x\n")
    with pytest.raises(UserError, match=r"progress\.csv"):
        learning_curve(tmp_path)


def test_smooth_is_a_trailing_mean():
    values = np.arange(100.0)
    smoothed = plots.smooth(values)
    assert smoothed[0] == 0
    assert smoothed[50] == pytest.approx(np.mean([46, 47, 48, 49, 50]))


@pytest.mark.parametrize(("group", "text"), [([3], "3"), ([0, 1, 2], "0-2"), ([0, 2, 5], "0,2,5")])
def test_span(group, text):
    assert plots.span(group) == text
