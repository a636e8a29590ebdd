"""Scores of the example models on a dataset: always on seeds that they were not trained on.

Seeds are dealt into folds; every model is trained as often as there are folds, each time without one of them,
and asked about that one. So each episode is foretold once, by a model that has seen neither it nor any other
episode of its seed. Intervals: 95 %, bootstrap over seeds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.benchmarks import dataset_models as models
from steelyard.envs.errors import UserError

FOLDS = 5
REPLICATES = 2000
LAST = "last"
"""Baseline that is told the truth, late: now, that of the step before; later, that of now. That is what
active probing gives (seed 004, ch. 5)."""
TARGETS = ("now", "ahead")
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A score and its interval."""

    value: float
    low: float
    high: float

    def to_dict(self) -> dict[str, float]:
        """For JSON."""
        return {"value": self.value, "low": self.low, "high": self.high}


def folds(seeds: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Seeds of each fold, FOLDS or, with fewer seeds, one each. UserError below two seeds."""
    found = np.unique(seeds)
    if len(found) < 2:
        raise UserError("dataset: one seed; to test on seeds never trained on, record two or more")
    return [np.asarray(part) for part in np.array_split(found, min(FOLDS, len(found)))]


def load_errors(data: models.Series, tested: models.Series | None = None) -> dict[str, Array]:
    """By model (S, K, 2) prediction minus truth, over all series, each foretold by a model without its seed.

    tested: another dataset, foretold by models of the whole of `data` instead.
    """
    if tested is not None:
        return _errors(data, tested, 0)
    errors: dict[str, Array] = {}
    for fold, held in enumerate(folds(data.seed)):
        out = np.isin(data.seed, held)
        for name, found in _errors(_part(data, ~out), _part(data, out), fold).items():
            errors.setdefault(name, np.empty((len(data.seed), *found.shape[1:])))[out] = found
    return errors


def _part(data: models.Series, which: NDArray[np.bool_]) -> models.Series:
    return models.Series(data.features[which], data.load[which], data.seed[which], data.balancers)


def _errors(train: models.Series, test: models.Series, seed: int) -> dict[str, Array]:
    truth = models.targets(test.load)
    first = models.WINDOW - 1
    count = truth.shape[1]
    last = np.stack([test.load[:, first - 1 : first - 1 + count], test.load[:, first : first + count]], -1)
    errors = {LAST: last - truth}
    for name, model in models.regressors(train.balancers, seed).items():
        model.fit(train.features, train.load)
        errors[name] = model.predict(test.features) - truth
    return errors


def score_load(data: models.Series, tested: models.Series | None = None) -> dict[str, Any]:
    """By model and target: mae and rmse [requests], and `gain`: by how much less than `mean` it errs."""
    errors, seeds = load_errors(data, tested), (tested or data).seed
    scores: dict[str, Any] = {}
    for index, target in enumerate(TARGETS):
        baseline = _by_seed(np.abs(errors["mean"][..., index]), seeds)
        for name, error in errors.items():
            size = _by_seed(np.abs(error[..., index]), seeds)
            square = _by_seed(error[..., index] ** 2, seeds)
            scores.setdefault(name, {})[target] = {
                "mae": estimate(np.mean, size).to_dict(),
                "rmse": estimate(_root_mean, square).to_dict(),
                "gain": estimate(_gain, size, baseline).to_dict(),
            }
    return scores


def _root_mean(squares: Array, axis: int) -> Any:
    return np.sqrt(squares.mean(axis))


def _gain(errors: Array, baseline: Array, axis: int) -> Any:
    return 1 - errors.mean(axis) / baseline.mean(axis)


def _by_seed(values: Array, seeds: NDArray[np.int64]) -> Array:
    """Mean of each seed, in the order of seeds."""
    return np.array([values[seeds == seed].mean() for seed in np.unique(seeds)])


def score_traffic(data: models.Flat, tested: models.Flat | None = None) -> dict[str, Any]:
    """By classifier its accuracy; of the last one the confusion; of the clusters the adjusted Rand index."""
    names = sorted(set(data.traffic))
    if len(names) < 2:
        raise UserError("dataset: one kind of traffic; record two or more to tell them apart")
    target = tested or data
    said = _classified(data, tested)
    scores: dict[str, Any] = {"kinds": names, "accuracy": {}}
    for name, labels in said.items():
        right = _by_seed((labels == target.traffic).astype(float), target.seed)
        scores["accuracy"][name] = estimate(np.mean, right).to_dict()
    last = said[list(said)[-1]]
    scores["confusion"] = [
        [int(((target.traffic == kind) & (last == told)).sum()) for told in names] for kind in names
    ]
    scores["adjusted_rand"] = _rand(target, len(names)).to_dict()
    return scores


def _classified(data: models.Flat, tested: models.Flat | None) -> dict[str, NDArray[Any]]:
    target = tested or data
    held = [None] if tested is not None else folds(data.seed)
    said: dict[str, NDArray[Any]] = {}
    for fold, part in enumerate(held):
        out = np.ones(len(target.seed), bool) if part is None else np.isin(target.seed, part)
        kept = np.ones(len(data.seed), bool) if part is None else ~out
        for name, model in models.classifiers(fold).items():
            model.fit(data.features[kept], data.traffic[kept])
            labels = model.predict(target.features[out])
            said.setdefault(name, np.empty(len(target.seed), target.traffic.dtype))[out] = labels
    return said


def _rand(data: models.Flat, kinds: int) -> Estimate:
    from sklearn.metrics import adjusted_rand_score

    found = models.clusters(data.features, kinds, 0)
    seeds = np.unique(data.seed)
    by_seed = np.array(
        [adjusted_rand_score(data.traffic[data.seed == seed], found[data.seed == seed]) for seed in seeds]
    )
    return estimate(np.mean, by_seed)


def estimate(statistic: Callable[..., Any], *values: Array) -> Estimate:
    """A statistic of one number for each seed (paired, if there are several arrays), and its percentile
    interval over draws of seeds.
    """
    count = len(values[0])
    draws = np.random.default_rng(0).integers(0, count, (REPLICATES, count))
    low, high = np.quantile(statistic(*(each[draws] for each in values), axis=-1), [0.025, 0.975])
    return Estimate(float(statistic(*values, axis=-1)), float(low), float(high))


def page(scores: dict[str, Any]) -> str:
    """The scores as Markdown tables."""
    lines = ["Load of a server [requests in it], mean absolute error:", ""]
    lines += ["| told by | now | better than the mean by | 2 s ahead | better than the mean by |"]
    lines += ["|---|---:|---:|---:|---:|"]
    for name, found in scores["load"].items():
        cells = []
        for target in TARGETS:
            cells += [_shown(found[target]["mae"], 2), _percent(found[target]["gain"])]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    if "traffic" in scores:
        traffic = scores["traffic"]
        lines += ["", "Kind of traffic, at one step:", "", "| classifier | right |", "|---|---:|"]
        lines += [f"| {name} | {_percent(found)} |" for name, found in traffic["accuracy"].items()]
        rand = _shown(traffic["adjusted_rand"], 2)
        lines += ["", f"Without labels (Gaussian mixture): adjusted Rand index {rand}.", ""]
        lines += ["| what it was, by what the last classifier said | " + " | ".join(traffic["kinds"]) + " |"]
        lines += ["|---" + "|---:" * len(traffic["kinds"]) + "|"]
        for kind, row in zip(traffic["kinds"], traffic["confusion"], strict=True):
            cells = [f"{100 * count / sum(row):.0f} %" for count in row]
            lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _shown(found: dict[str, float], digits: int) -> str:
    return f"{found['value']:.{digits}f} [{found['low']:.{digits}f}, {found['high']:.{digits}f}]"


def _percent(found: dict[str, float]) -> str:
    low, high = 100 * found["low"], 100 * found["high"]
    return f"{100 * found['value']:.0f} % [{low:.0f}, {high:.0f}]"
