"""The study files: every case is a game that can be played, at the load that its name claims."""

import re
import tomllib
from pathlib import Path

import pytest

from steelyard.benchmarks.study import load_study
from steelyard.envs.scenario import Scenario

STUDIES = Path(__file__).resolve().parent.parent / "benchmarks" / "studies"
FILES = sorted(STUDIES.glob("*.toml"))
AT_A_LOAD = ("charon-41", "hlb-651", "hlb-652", "hlb-653")  # a case is named by its load: "88.5 %"


def study(name: str) -> dict:
    return tomllib.loads((STUDIES / f"{name}.toml").read_text())


def scenario_of(case: dict) -> Scenario:
    return Scenario.load(case["scenario"], case.get("set", []))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_cases_and_trainings_are_games(path):
    read = load_study(path.stem)
    for held in (*read.cases, *read.learners):
        assert held.scenario.to_native() is not None


@pytest.mark.parametrize("name", AT_A_LOAD)
def test_cases_are_at_the_load_in_their_name(name):
    named = [(case, re.search(r"([\d.]+) %", case["name"])) for case in study(name)["cases"]]
    assert sum(found is not None for _, found in named) >= 5
    for case, found in named:
        load = 90.0 if found is None else float(found[1])
        assert scenario_of(case).offered_load().cpu == pytest.approx(load / 100, rel=1e-3)


@pytest.mark.parametrize("name", AT_A_LOAD[1:])
def test_the_middle_half_of_80000_requests_counts(name):
    for case in study(name)["cases"]:
        scenario = scenario_of(case)
        whole_s = 80_000 / scenario.workload.arrival.mean_rate()
        assert scenario.episode.warmup_s == pytest.approx(whole_s / 4, rel=1e-3)
        assert scenario.episode.horizon_s == pytest.approx(3 * whole_s / 4, rel=1e-3)


@pytest.mark.parametrize(("name", "count"), [("charon-41", 5 * 6), ("table3-002", 3 * 5 + 5 * 6 - 2)])
def test_tables_are_quoted_whole(name, count):
    quoted = study(name)["quoted"]
    assert len({(each["case"], each["policy"], each["source"]) for each in quoted}) == len(quoted) == count
