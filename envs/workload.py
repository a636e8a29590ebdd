# ruff: noqa: RUF009  (fields are declared through `item` and `table`, which return dataclasses.field)
"""Tables of a scenario's workload: demand distributions, stages, arrival processes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from steelyard.envs.errors import UserError, bad_value
from steelyard.envs.scenario_parse import Choice, Listed, Number, Table, Text, check_keys_of_kind, item

_SECONDS = Number(low=0, high=1e6, open_low=True)
_RATE = Number(low=0, high=1e9, open_low=True)
_PROBABILITY = Number(low=0, high=1)


def packaged_traces() -> dict[str, Path]:
    """Recorded traces that come with the project, by name."""
    return {file.stem: file for file in sorted((Path(__file__).parent / "traces").glob("*.csv"))}


@dataclass(frozen=True)
class _Family:
    """One kind of distribution: its native kind, its keys, and how they become native parameters a, b and a
    mean.
    """

    native: str
    keys: tuple[str, ...]
    a: Callable[[Any], list[float]]
    mean: Callable[[Any], float]
    types: int = 0  # number of values a k-modal distribution must have; 0: any


def _weighted_mean(values: tuple[float, ...], probabilities: tuple[float, ...]) -> float:
    return math.fsum(value * p for value, p in zip(values, probabilities, strict=True))


def _discrete(types: int) -> _Family:
    return _Family(
        "discrete",
        ("values_s", "probabilities"),
        lambda d: list(d.values_s),
        lambda d: _weighted_mean(d.values_s, d.probabilities),
        types,
    )


_FAMILIES = {
    "exponential": _Family("exponential", ("mean_s",), lambda d: [d.mean_s], lambda d: d.mean_s),
    "deterministic": _Family("deterministic", ("value_s",), lambda d: [d.value_s], lambda d: d.value_s),
    "uniform": _Family(
        "uniform", ("low_s", "high_s"), lambda d: [d.low_s, d.high_s], lambda d: (d.low_s + d.high_s) / 2
    ),
    "lognormal": _Family("lognormal", ("mean_s", "sigma"), lambda d: [d.mean_s, d.sigma], lambda d: d.mean_s),
    "pareto": _Family("pareto", ("mean_s", "alpha"), lambda d: [d.mean_s, d.alpha], lambda d: d.mean_s),
    "discrete": _discrete(0),
    "bimodal": _discrete(2),
    "trimodal": _discrete(3),
    "kmodal": _discrete(0),
    "hyperexponential": _Family(
        "hyperexponential",
        ("means_s", "probabilities"),
        lambda d: list(d.means_s),
        lambda d: _weighted_mean(d.means_s, d.probabilities),
    ),
    "lognormal_mixture": _Family(
        "lognormal_mixture",
        ("means_s", "sigmas", "probabilities"),
        lambda d: [*d.means_s, *d.sigmas],
        lambda d: _weighted_mean(d.means_s, d.probabilities),
    ),
    "empirical": _Family(
        "empirical",
        ("samples_s",),
        lambda d: list(d.samples_s),
        lambda d: math.fsum(d.samples_s) / len(d.samples_s),
    ),
    "trace": _Family(
        "trace", ("scale",), lambda d: [1.0 if d.scale is None else d.scale], lambda d: math.nan
    ),
}


@dataclass(frozen=True)
class Demand:
    """How much work a stage of a flow is. Which keys are needed depends on `kind`."""

    kind: str = item(Choice(tuple(_FAMILIES)), "distribution of the demand")
    mean_s: float | None = item(_SECONDS, "mean (exponential, lognormal, pareto)", None, "s")
    value_s: float | None = item(_SECONDS, "the one value (deterministic)", None, "s")
    low_s: float | None = item(Number(low=0, high=1e6), "least value (uniform)", None, "s")
    high_s: float | None = item(_SECONDS, "largest value (uniform)", None, "s")
    sigma: float | None = item(
        Number(low=0, high=10, open_low=True), "standard deviation of the logarithm (lognormal)", None
    )
    alpha: float | None = item(Number(low=1, high=100, open_low=True), "tail index (pareto)", None)
    values_s: tuple[float, ...] | None = item(
        Listed(_SECONDS), "values (bimodal, trimodal, kmodal, discrete)", None, "s"
    )
    means_s: tuple[float, ...] | None = item(
        Listed(_SECONDS), "mean of each type (hyperexponential, lognormal_mixture)", None, "s"
    )
    sigmas: tuple[float, ...] | None = item(
        Listed(Number(low=0, high=10, open_low=True)),
        "standard deviation of the logarithm of each type (lognormal_mixture)",
        None,
    )
    probabilities: tuple[float, ...] | None = item(
        Listed(_PROBABILITY), "probability of each value or type; they sum to 1", None
    )
    samples_s: tuple[float, ...] | None = item(
        Listed(_SECONDS), "samples, each equally likely (empirical)", None, "s"
    )
    scale: float | None = item(
        Number(low=0, high=1e9, open_low=True), "factor on the recorded demand (trace; 1 if left out)", None
    )

    def check(self, key: str) -> None:
        """Raises UserError unless exactly the keys of `kind` are there and agree with each other."""
        check_keys_of_kind(self, key, {kind: f.keys for kind, f in _FAMILIES.items()}, optional=("scale",))
        if self.low_s is not None and self.high_s is not None and self.low_s >= self.high_s:
            raise bad_value(f"{key}.low_s", self.low_s, f"a number below high_s = {self.high_s:g}")
        if self.probabilities is not None:
            self._check_probabilities(key, self.probabilities)

    def _check_probabilities(self, key: str, probabilities: tuple[float, ...]) -> None:
        name = "values_s" if self.values_s is not None else "means_s"
        values = self.values_s or self.means_s or ()
        types = _FAMILIES[self.kind].types
        if types and len(values) != types:
            raise bad_value(f"{key}.{name}", list(values), f"a list of {types} for kind {self.kind!r}")
        if len(probabilities) != len(values):
            raise bad_value(
                f"{key}.probabilities",
                list(probabilities),
                f"a list of {len(values)}, one for each of {name}",
            )
        if self.sigmas is not None and len(self.sigmas) != len(values):
            raise bad_value(
                f"{key}.sigmas", list(self.sigmas), f"a list of {len(values)}, one for each of {name}"
            )
        if abs(math.fsum(probabilities) - 1) > 1e-6:
            raise bad_value(f"{key}.probabilities", list(probabilities), "a list whose sum is 1")

    def mean(self, trace: Any = None) -> float:
        """Mean demand [s]; for kind `trace` of the given native trace."""
        if self.kind == "trace":
            return trace.mean_service_s * (1.0 if self.scale is None else self.scale)
        return _FAMILIES[self.kind].mean(self)

    def to_native(self) -> Any:
        """The native distribution."""
        from steelyard import native

        made = native.Distribution()
        made.kind = _FAMILIES[self.kind].native
        made.a = _FAMILIES[self.kind].a(self)
        made.b = list(self.probabilities or ())
        return made


@dataclass(frozen=True)
class Stage:
    """One stage of the application."""

    kind: str = item(Choice(("cpu", "io")), "the device that serves this stage")
    demand: Demand = item(Table(Demand), "work of a flow in this stage, drawn independently of other stages")


_ARRIVAL_KEYS = {
    "poisson": ("rate",),
    "mmpp": ("rates", "mean_stay_s"),
    "diurnal": ("rate", "amplitude", "period_s", "phase"),
    "trace": ("trace", "time_scale"),
}


@dataclass(frozen=True)
class Arrival:
    """How flows arrive. Which keys are needed depends on `kind`."""

    kind: str = item(Choice(tuple(_ARRIVAL_KEYS)), "arrival process")
    rate: float | None = item(
        _RATE, "flows per second over all balancers (poisson; diurnal: its mean)", None, "1/s"
    )
    rates: tuple[float, ...] | None = item(
        Listed(_RATE, min_items=2), "rate in each state (mmpp)", None, "1/s"
    )
    mean_stay_s: tuple[float, ...] | None = item(
        Listed(Number(low=1e-3, high=1e6), min_items=2), "mean stay in each state (mmpp)", None, "s"
    )
    amplitude: float | None = item(
        Number(low=0, high=0.999), "rate(t) = rate (1 + amplitude sin(2 pi (t / period_s + phase)))", None
    )
    period_s: float | None = item(Number(low=0, high=1e9, open_low=True), "period (diurnal)", None, "s")
    phase: float | None = item(Number(low=0, high=1), "phase in periods (diurnal; 0 if left out)", None)
    trace: str | None = item(
        Text(),
        "a packaged trace by name, or a CSV file relative to the scenario's (trace); see envs/traces",
        None,
    )
    time_scale: float | None = item(
        Number(low=1e-6, high=1e6), "factor on recorded times (trace; 1 if left out)", None
    )

    def check(self, key: str) -> None:
        """Raises UserError unless exactly the keys of `kind` are there and agree with each other."""
        check_keys_of_kind(self, key, _ARRIVAL_KEYS, optional=("phase", "time_scale"))
        rates, stays = self.rates or (), self.mean_stay_s or ()
        if len(rates) != len(stays):
            raise bad_value(f"{key}.mean_stay_s", list(stays), f"a list of {len(rates)}, as rates")

    def located(self, base: Path | None) -> Arrival:
        """The same with a trace file made absolute, relative to the folder `base`; a packaged trace keeps its
        name.
        """
        if self.trace is None or self.trace in packaged_traces():
            return self
        return replace(self, trace=str((base or Path.cwd()) / self.trace))

    def load_trace(self) -> Any:
        """The native trace, or None. Raises UserError with the line of a bad row."""
        if self.trace is None:
            return None
        packaged = packaged_traces()
        path = packaged.get(self.trace, Path(self.trace))
        try:
            stamp = path.stat().st_mtime_ns
        except (OSError, ValueError):
            allowed = f"a trace file, or a packaged trace ({', '.join(packaged) or 'none'})"
            raise bad_value("workload.arrival.trace", self.trace, allowed) from None
        return _read_trace(str(path), stamp)

    def mean_rate(self, trace: Any = None) -> float:
        """Long-run flows per second; for kind `trace` of the given native trace, replayed in a circle."""
        if self.kind == "trace":
            return trace.mean_rate / (1.0 if self.time_scale is None else self.time_scale)
        if self.rates is not None and self.mean_stay_s is not None:
            return _weighted_mean(self.rates, self.mean_stay_s) / math.fsum(self.mean_stay_s)
        return self.rate or 0.0

    def to_native(self) -> Any:
        """The native arrival process."""
        from steelyard import native

        made = native.ArrivalConfig()
        made.kind = self.kind
        made.rate = self.rate or 0.0
        made.mmpp_rates = list(self.rates or ())
        made.mmpp_mean_s = list(self.mean_stay_s or ())
        made.diurnal_amplitude = self.amplitude or 0.0
        made.diurnal_period_s = self.period_s or 0.0
        made.diurnal_phase = self.phase or 0.0
        made.time_scale = 1.0 if self.time_scale is None else self.time_scale
        return made


@lru_cache(maxsize=4)
def _read_trace(path: str, stamp: int) -> Any:
    """Reads a trace once per version of the file; `stamp` is its time of change."""
    from steelyard import native

    try:
        return native.load_trace(path)
    except ValueError as error:
        raise UserError(str(error)) from None


@dataclass(frozen=True)
class Workload:
    """What arrives, and what each flow asks of its server."""

    arrival: Arrival = item(Table(Arrival), "arrival process of flows")
    stages: tuple[Stage, ...] = item(Listed(Table(Stage), max_items=32), "stages of a flow, in order")

    def check(self, key: str) -> None:
        """A recorded demand needs a recorded arrival."""
        for index, stage in enumerate(self.stages):
            if stage.demand.kind == "trace" and self.arrival.kind != "trace":
                allowed = "another kind, unless workload.arrival.kind is 'trace'"
                raise bad_value(f"{key}.stages.{index}.demand.kind", "trace", allowed)
