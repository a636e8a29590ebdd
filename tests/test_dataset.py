"""Datasets: what a row holds, what travels with a file, and that scores are of seeds never trained on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from steelyard import native
from steelyard.benchmarks import dataset, dataset_models, dataset_scores
from steelyard.envs.errors import UserError
from steelyard.envs.scenario import Scenario
from steelyard.envs.schema import observation_fields
from steelyard.trainers.cli import main

SHORT = ["episode.horizon_s=12", "episode.warmup_s=0"]
SCENARIO = Scenario.load("testbed-2x4", SHORT)


@pytest.fixture(scope="module")
def data() -> dataset.Columns:
    """Two kinds of traffic, four seeds each."""
    listed = dataset.plans(SCENARIO, ["loop", "files"], range(4))
    return dataset.record(listed, lambda plan: dataset.simulate(plan, "wcmp"))


# --- recording ---


def test_a_row_is_what_the_balancer_sees_and_what_the_world_knows() -> None:
    (plan,) = dataset.plans(SCENARIO, ["heavy"], range(3, 4))
    rows = dataset.columns(plan, dataset.simulate(plan, "wcmp"))
    world = native.World(plan.scenario.to_native(), plan.scenario.to_rule("wcmp"), 3)
    world.run_until(20 * 0.25)
    (row,) = np.flatnonzero((rows["step"] == 19) & (rows["balancer"] == 1) & (rows["server"] == 2))
    seen = {field.name: float(world.observe(1)[field.index]) for field in observation_fields(4)}
    assert rows["t_s"][row] == 5.0
    assert rows["n_flow_on"][row] == seen["server_2.n_flow_on"]
    assert rows["fct_p90"][row] == pytest.approx(seen["server_2.fct.p90"])
    assert rows["flow_duration_wdmean"][row] == pytest.approx(seen["server_2.flow_duration.wdmean"])
    assert rows["inter_arrival_std"][row] == pytest.approx(seen["inter_arrival.std"])
    assert rows["in_server"][row] == world.state()["in_system"][2]
    assert rows["remaining_s"][row] == pytest.approx(world.remaining_time()[2])
    assert rows["capacity"][row] == 0.2
    assert np.isnan(rows["cpu_busy"][row])
    assert np.isnan(rows["packets"][row])


def test_every_kind_of_traffic_has_the_load_that_it_claims() -> None:
    for plan in dataset.plans(SCENARIO, list(dataset.TRAFFIC), range(2)):
        assert plan.scenario.offered_load().cpu == pytest.approx(plan.load, rel=1e-6)
        assert dataset.LOADS[0] <= plan.load <= dataset.LOADS[1]
    loads = {plan.load for plan in dataset.plans(SCENARIO, list(dataset.TRAFFIC), range(2))}
    assert len(loads) == 8


def test_what_cannot_be_recorded() -> None:
    with pytest.raises(UserError, match=r"--traffic.*'video'"):
        dataset.plans(SCENARIO, ["video"], range(1))
    drop = SCENARIO.with_overrides(['events=[{kind="speed",t_s=1,value=0.5}]'])
    with pytest.raises(UserError, match="must have no events"):
        dataset.plans(drop, ["loop"], range(1))
    with pytest.raises(UserError, match="must have one stage"):
        dataset.plans(Scenario.load("web-trace"), ["loop"], range(1))


# --- files ---


def test_a_file_gives_back_what_was_written(data: dataset.Columns, tmp_path: Path) -> None:
    dataset.write(tmp_path / "d.parquet", data, {"command": "steelyard dataset record"})
    again, facts = dataset.read(tmp_path / "d.parquet")
    assert facts == {"command": "steelyard dataset record"}
    assert set(again) == {*dataset.KEYS, *dataset.FEATURES, *dataset.COUNTERS, *dataset.TRUTH}
    for name, values in data.items():
        np.testing.assert_array_equal(again[name], values, err_msg=name)
    other = tmp_path / "other.parquet"
    other.write_bytes(b"PAR1")
    with pytest.raises(UserError, match=r"dataset .*other\.parquet"):
        dataset.read(other)


def test_the_command_writes_a_file_that_names_it(tmp_path: Path) -> None:
    out = tmp_path / "d.parquet"
    words = f"dataset record --seeds 0:1 --traffic loop --out {out} --quiet --set episode.horizon_s=1"
    assert main([*words.split(), "--set", "episode.warmup_s=0"]) == 0
    data, facts = dataset.read(out)
    assert len(data["step"]) == 4 * 2 * 4
    assert facts["where"] == "simulated"
    assert facts["command"].startswith(f"steelyard dataset record --out {out} ")
    assert facts["scenario"]["episode"]["horizon_s"] == 1


@pytest.mark.parametrize(
    "words",
    ["--out d.csv", "--out nowhere/d.parquet", "--out d.parquet --policy best", "--out d.parquet --seeds 3"],
)
def test_bad_options_write_nothing(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["dataset", "record", *words.split()]) == 2
    assert capfd.readouterr().err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


# --- models ---


def test_series_and_targets_are_in_order(data: dataset.Columns) -> None:
    mixed = {name: values[::-1] for name, values in data.items()}
    found = dataset_models.series(mixed)
    assert found.features.shape == (8 * 2 * 4, 48, len(dataset.FEATURES))
    pick = (data["episode"] == 1) & (data["balancer"] == 1) & (data["server"] == 2)
    # Both balancers' series have the load of the same server: the second is of balancer 1.
    _, row = np.flatnonzero((found.load == data["in_server"][pick]).all(1))
    np.testing.assert_array_equal(found.features[row, :, 0], data["n_flow_on"][pick])
    wanted = dataset_models.targets(found.load)[row]
    first = dataset_models.WINDOW - 1
    assert wanted[0].tolist() == [found.load[row, first], found.load[row, first + dataset_models.AHEAD]]
    assert len(wanted) == 48 - first - dataset_models.AHEAD


def test_nothing_is_foretold_by_a_model_of_its_own_seed(
    data: dataset.Columns, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = dataset_models.series(data)
    by_features = {each.tobytes(): seed for each, seed in zip(found.features, found.seed, strict=True)}
    asked: list[int] = []

    class Spy:
        def fit(self, windows: np.ndarray, load: np.ndarray) -> None:
            self.known = {by_features[each.tobytes()] for each in windows}

        def predict(self, windows: np.ndarray) -> np.ndarray:
            seeds = [by_features[each.tobytes()] for each in windows]
            assert not self.known & set(seeds)
            asked.extend(seeds)
            return np.zeros((*dataset_models.asked(windows).shape[:2], 2))

    monkeypatch.setattr(dataset_models, "regressors", lambda balancers, seed: {"mean": Spy()})
    dataset_scores.load_errors(found)
    assert sorted(asked) == sorted(found.seed.tolist())


def test_last_knows_the_truth_of_the_step_before(
    data: dataset.Columns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset_models, "regressors", lambda balancers, seed: {})
    found = dataset_models.series(data)
    truth = dataset_models.targets(found.load)
    errors = dataset_scores.load_errors(found)[dataset_scores.LAST]
    np.testing.assert_allclose(errors[:, 1:, 0], truth[:, :-1, 0] - truth[:, 1:, 0])
    np.testing.assert_allclose(errors[..., 1], truth[..., 0] - truth[..., 1])


@pytest.mark.slow
def test_memory_tells_what_the_moment_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """The load is x(t) + x(t - 1): without memory half of its variance is out of reach."""
    monkeypatch.setattr(dataset_models, "EPOCHS", 40)
    monkeypatch.setattr(dataset_models, "STRIDE", 2)
    x = np.random.default_rng(0).normal(size=(40, 70, 2)).astype(np.float32)
    load = x[..., 0].astype(float)
    load[:, 1:] += x[:, :-1, 0]
    model = dataset_models.Recurrent(seed=1)
    with dataset_models.one_thread():
        model.fit(x[:30], load[:30])
        error = model.predict(x[30:]) - dataset_models.targets(load[30:])
    assert error[..., 0].std() < 0.5  # of 1.41; one moment alone leaves 1
    assert error[..., 1].std() == pytest.approx(np.sqrt(2), rel=0.15)  # nothing foretells what is drawn later


@pytest.mark.slow
def test_score_command(data: dataset.Columns, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    dataset.write(tmp_path / "d.parquet", data, {})
    assert main(["dataset", "score", str(tmp_path / "d.parquet"), "--out", str(tmp_path / "s")]) == 0
    printed = capfd.readouterr().out
    assert printed == (tmp_path / "s" / "table.md").read_text()
    scores = json.loads((tmp_path / "s" / "scores.json").read_text())
    # Equal short requests and exponential ones are told apart at a glance; a guess is right half of the time.
    assert scores["traffic"]["accuracy"]["most frequent"]["value"] == 0.5
    assert scores["traffic"]["accuracy"]["forest"]["low"] > 0.8
    assert scores["load"]["boosting"]["now"]["gain"]["value"] > 0.2
    only = {name: values[data["traffic"] == "loop"] for name, values in data.items()}
    with pytest.raises(UserError, match="one kind of traffic"):
        dataset_scores.score_traffic(dataset_models.flat(only))


def test_intervals_hold_what_they_say() -> None:
    found = dataset_scores.estimate(np.mean, np.arange(100.0))
    assert found.value == 49.5
    error = 100 / np.sqrt(12) / np.sqrt(100)
    assert (found.high - found.low) / (2 * 1.96 * error) == pytest.approx(1, abs=0.1)
    paired = dataset_scores.estimate(
        lambda a, b, axis: (a - b).mean(axis), np.arange(9.0), np.arange(9.0) - 1
    )
    assert (paired.low, paired.high) == (1, 1)


def _difference(a: np.ndarray, b: np.ndarray, axis: int) -> np.ndarray:
    return (a - b).mean(axis)
