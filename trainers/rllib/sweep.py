"""Sweeps on Ray Tune: every trial is a training run with its own directory, of either engine.

DIR/sweep.toml    the sweep's file, as it was
DIR/tune/         Ray Tune's own state
DIR/trials/ID/    the run directory of a trial; ID is its place in the sweep and a digest of its choices, so
                  that it is found again even if Tune was killed before it noted the trial
DIR/results.csv   a row per trial: its hyper-parameters, episodes, eval_sojourn_s, best first
DIR/best.toml     the best trial's hyper-parameters, for `steelyard train --hyper`
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from steelyard.envs.errors import UserError
from steelyard.envs.toml_text import write_toml
from steelyard.trainers import results
from steelyard.trainers.rllib import cluster
from steelyard.trainers.rllib.sweep_file import METRIC, Sweep

_NAME, _TRIALS, _FILE = "tune", "trials", "sweep.toml"
_SAVE_S = "2"  # between two saves of Tune's own state
_CHUNKS = 8  # ASHA may stop a trial after this share of its episodes


def check_directory(out: Path, text: str, resume: bool) -> None:
    """UserError unless a sweep can start in `out`, or this very one go on; writes nothing."""
    found = out / _FILE
    if not resume:
        if out.is_dir() and any(out.iterdir()):
            hint = "add --resume to go on with it" if found.is_file() else "it is not a sweep's directory"
            raise UserError(f"--out: {out} is not empty; {hint}, or name another directory")
        results.check_directory("--out", out)
        return
    if not found.is_file():
        raise UserError(f"--out: {out} has no {_FILE}, so there is no sweep to resume; drop --resume")
    if found.read_text("utf-8") != text:
        raise UserError(f"--resume: the file is not the one that {out} was begun with ({found})")


def run(
    sweep: Sweep, text: str, out: Path, *, resume: bool, cpus: int, address: str | None, quiet: bool
) -> bool:
    """Run the sweep to its end or to Ctrl-C; whether it has ended. Results are written in both cases."""
    os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] = "1"
    os.environ["TUNE_GLOBAL_CHECKPOINT_S"] = _SAVE_S
    with cluster.connected(address, cpus):
        results.make_directory("--out", out)
        results.write_file("--out", out / _FILE, text.encode())
        (out / _TRIALS).mkdir(exist_ok=True)
        _tuner(sweep, out.resolve(), resume, cpus, quiet).fit()
        from ray.tune import ExperimentAnalysis

        trials = ExperimentAnalysis(str(out.resolve() / _NAME)).trials or []
    rows = sorted((_row(sweep, trial) for trial in trials), key=lambda row: row[METRIC] or float("inf"))
    results.write_table("--out", out / "results.csv", rows)
    if rows and rows[0][METRIC] is not None:
        results.write_file("--out", out / "best.toml", _best(sweep, rows[0]).encode())
    failed = [row for row in rows if row["status"] == "ERROR"]
    if failed:
        raise UserError(f"sweep: {len(failed)} of {len(rows)} trials failed; see {out / _NAME}")
    return bool(rows) and all(row["status"] == "TERMINATED" for row in rows)


def _tuner(sweep: Sweep, out: Path, resume: bool, cpus: int, quiet: bool) -> Any:
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler
    from ray.tune.search.basic_variant import BasicVariantGenerator

    trainable = tune.with_resources(tune.with_parameters(_trial, sweep=sweep, out=str(out)), {"cpu": 1})
    path = out / _NAME
    if resume and tune.Tuner.can_restore(str(path)):
        return tune.Tuner.restore(str(path), trainable, resume_unfinished=True, restart_errored=True)
    asha = ASHAScheduler(
        time_attr="episodes",
        max_t=sweep.episodes + 1,
        grace_period=max(1, sweep.episodes // _CHUNKS),
        reduction_factor=2,
    )
    return tune.Tuner(
        trainable,
        param_space={name: _domain(each) for name, each in sweep.space.items()},
        tune_config=tune.TuneConfig(
            metric=METRIC,
            mode="min",
            num_samples=sweep.samples,
            scheduler=asha if sweep.scheduler == "asha" else None,
            search_alg=BasicVariantGenerator(max_concurrent=cpus, random_state=sweep.seed),
        ),
        run_config=tune.RunConfig(
            name=_NAME, storage_path=str(out), verbose=0, callbacks=[] if quiet else [_progress()]
        ),
    )


def _domain(each: Any) -> Any:
    from ray import tune

    if each.kind in ("choice", "grid"):
        return {"choice": tune.choice, "grid": tune.grid_search}[each.kind](list(each.values))
    return getattr(tune, each.kind)(*each.values)


def _trial(chosen: dict[str, Any], sweep: Sweep, out: str) -> None:
    """One training run, in a process of Tune's; goes on from its checkpoint if it was begun before."""
    from ray import tune

    config = sweep.config(chosen)
    directory = Path(out) / _TRIALS / _name(tune.get_context().get_trial_id(), chosen)
    with _alone(directory.with_suffix(".lock")):
        _train(sweep, config, directory)


def _name(trial: str, chosen: Mapping[str, Any]) -> str:
    """Of a trial's directory. Tune's own name has a random part before its number."""
    digest = hashlib.sha256(json.dumps(chosen, sort_keys=True, default=str).encode()).hexdigest()
    return f"{trial.rpartition('_')[2]}-{digest[:8]}"


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Waits for whoever holds the file: a trial of a sweep that was killed may live for a moment."""
    with open(path, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _train(sweep: Sweep, config: Any, directory: Path) -> None:
    from ray import tune

    from steelyard.trainers import session

    plan = session.Plan(
        scenario=sweep.scenario,
        algorithm=sweep.algo,
        directory=directory,
        episodes=sweep.episodes,
        seed=sweep.seed,
        num_envs=config.num_envs,
        hyper=dataclasses.asdict(config),
        command=f"steelyard sweep {_FILE}",
        quiet=True,
        engine=sweep.engine,
    )
    trainer = _trainer(sweep, config)
    begun = (directory / "config.json").is_file()
    if not begun:  # killed while it was made
        shutil.rmtree(directory, ignore_errors=True)
    saved = session.open_run(plan, begun)
    course = session.Session(plan, trainer, saved)
    told: list[int] = []

    def tell(episode: int, sojourn_s: float) -> None:
        told.append(episode)
        tune.report({METRIC: sojourn_s, "episodes": episode})

    course.on_evaluation = tell
    course.run()
    if not told:  # it had ended before
        tell(trainer.episodes, course.learned_s)


def _trainer(sweep: Sweep, config: Any) -> Any:
    if sweep.engine == "rllib":
        from steelyard.trainers.rllib.trainer import RllibTrainer

        return RllibTrainer(config, sweep.scenario, sweep.seed)
    from steelyard.trainers import algorithms

    kind = algorithms.find_algorithm(sweep.algo).trainer_class()
    return kind(config, sweep.scenario, sweep.seed, 1)


def _progress() -> Any:
    from ray.tune import Callback

    class Progress(Callback):
        """A line on stderr for every trial that ends."""

        def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            done = sum(each.status == "TERMINATED" for each in trials) + (trial.status != "TERMINATED")
            last = trial.last_result
            chosen = ", ".join(f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
                               for name, value in trial.config.items())  # fmt: skip
            text = f"{last.get(METRIC, float('nan')):.3f} s after {last.get('episodes', 0)} episodes"
            print(f"trial {done}: {text}; {chosen}", file=sys.stderr, flush=True)

    return Progress()


def _row(sweep: Sweep, trial: Any) -> dict[str, Any]:
    last = trial.last_result or {}
    chosen = {name: trial.config.get(name) for name in sweep.space}
    return {
        "trial": _name(trial.trial_id, trial.config),
        "status": trial.status,
        "episodes": last.get("episodes"),
        METRIC: last.get(METRIC),
        **chosen,
    }


def _best(sweep: Sweep, row: dict[str, Any]) -> str:
    hyper = {**sweep.fixed, **{name: row[name] for name in sweep.space}}
    head = {
        "scenario": sweep.scenario.name,
        "engine": sweep.engine,
        "algo": sweep.algo,
        "seed": sweep.seed,
        "episodes": row["episodes"],
        METRIC: row[METRIC],
    }
    return write_toml({**head, "hyper": hyper})
