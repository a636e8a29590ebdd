"""The keys of a study file: what each accepts, its default and meaning; said here and nowhere else.

Bad input is a UserError of one line. docs/studies.md lists the keys.
"""

from __future__ import annotations

from dataclasses import dataclass

from steelyard.envs.errors import UserError, bad_value
from steelyard.envs.scenario_parse import Choice, Listed, Number, Table, Text, Whole, item, keys_of
from steelyard.trainers.commands.common import MAX_EPISODES, parse_seeds

HYPER = "algo."
"""Prefix of a learner's hyper-parameters among its overrides."""
LOCAL = "local"
"""The engine that needs no option."""
FROZEN, LEARNING = "frozen", "learning"
_MAX_TRAINING_SEEDS = 1000


@dataclass(frozen=True)
class SeedRange:
    """Seeds A, A+1, ..., B-1 as "A:B"."""

    most: int = MAX_EPISODES

    def allowed(self) -> str:
        return f'"A:B" with 0 <= A < B <= 2^63, at most {self.most:,} seeds'

    def read(self, value: object, key: str) -> range:
        if not isinstance(value, str):
            raise bad_value(key, value, self.allowed())
        try:
            seeds = parse_seeds(value)
        except UserError:
            raise bad_value(key, value, self.allowed()) from None
        if len(seeds) > self.most:
            raise bad_value(key, value, self.allowed())
        return seeds

    def plain(self, value: range) -> object:
        return seeds_text(value)


_NAME = Text(120)
_POLICIES = Listed(Text(1000), min_items=0, max_items=1000)
_OVERRIDES = Listed(Text(), min_items=0, max_items=1000)


@dataclass(frozen=True)
class LearnerEntry:
    """A learner that the study trains."""

    name: str = item(_NAME, "label in tables")
    algo: str = item(_NAME, "what `steelyard train --algo` takes")
    episodes: int = item(Whole(1, MAX_EPISODES), "training episodes of each run")
    scenario: str = item(
        Text(),
        "trained on: a name, or a file relative to the study's; left out: for each case that it plays, on it",
        "",
    )
    at: float | None = item(Number(), "without scenario: once for each axis, on its case of this value", None)
    play: str = item(
        Choice((FROZEN, LEARNING)), "whether a learner of racks goes on learning as it plays", FROZEN
    )
    engine: str = item(Choice((LOCAL, "rllib")), "what trains: this project or Ray RLlib", LOCAL)
    train_set: tuple[str, ...] = item(_OVERRIDES, "overrides of the scenario, and algo.NAME=VALUE", ())
    seeds: range = item(SeedRange(_MAX_TRAINING_SEEDS), "training seeds, one run each", range(5))
    note: str = item(Text(), "a sentence for readers, such as what was tried", "")


@dataclass(frozen=True)
class CaseEntry:
    """A scenario on which policies are compared."""

    scenario: str = item(Text(), "a name, or a file relative to the study's")
    name: str = item(_NAME, "label in tables; the scenario's name if left out", "")
    set: tuple[str, ...] = item(_OVERRIDES, "overrides of the scenario", ())
    policies: tuple[str, ...] | None = item(_POLICIES, "instead of the study's", None)
    policies_add: tuple[str, ...] = item(_POLICIES, "besides the others", ())
    group: str = item(_NAME, "cases of one group make one table", "")
    axis: str = item(_NAME, "a key of the scenario: one case for each of `values`, in one group", "")
    values: tuple[float, ...] = item(Listed(Number(), min_items=0, max_items=100), "of the axis", ())

    def check(self, key: str) -> None:
        """Raises UserError for an axis without values, or values without an axis."""
        if bool(self.axis) != bool(self.values):
            raise UserError(f"{key}: axis and values go together; give both or none")


@dataclass(frozen=True)
class QuotedEntry:
    """A number of a paper, shown beside ours."""

    case: str = item(_NAME, "a case of this study")
    policy: str = item(_NAME, "a policy of that case")
    metric: str = item(_NAME, "a metric of the simulator")
    value: float = item(Number(), "the paper's number, in the metric's unit")
    source: str = item(Text(), "paper and table")
    spread: float | None = item(Number(low=0), "the paper's spread", None)
    note: str = item(Text(), "one sentence on the agreement", "")


@dataclass(frozen=True)
class LimitEntry:
    """How far up an axis a policy keeps a metric low."""

    metric: str = item(_NAME, "a metric of the simulator")
    most: float | None = item(Number(low=0), "at most this, in the metric's unit", None)
    policy: str = item(_NAME, "or: against this policy", "")
    times: float = item(Number(low=0), "at most so many times its value on the axis's first case", 1.0)

    def check(self, key: str) -> None:
        """Raises UserError unless there is one limit."""
        if (self.most is None) == (not self.policy):
            raise UserError(f"{key}: give most, or policy and times")


@dataclass(frozen=True)
class StudyEntry:
    """A study file."""

    title: str = item(Text(200), "heading of the report")
    cases: tuple[CaseEntry, ...] = item(Listed(Table(CaseEntry), max_items=1000), "what is played")
    policies: tuple[str, ...] = item(_POLICIES, "rules, learners or policy files; of every case", ())
    description: str = item(Text(), "what is asked, for people", "")
    seeds: range = item(SeedRange(), "evaluation seeds of every case", range(50))
    convention: str = item(
        Choice(("uncensored", "peer")),
        "which flows count: all that arrived, or those completed",
        "uncensored",
    )
    reference: str = item(_NAME, "policy that others are measured against", "tuned-sed")
    metrics: tuple[str, ...] = item(
        Listed(_NAME, max_items=40),
        "columns of the tables; the first one ranks",
        ("sojourn_mean_s", "sojourn_p99_s", "rejected"),
    )
    learners: tuple[LearnerEntry, ...] = item(
        Listed(Table(LearnerEntry), min_items=0, max_items=1000), "who is trained", ()
    )
    train_set: tuple[str, ...] = item(_OVERRIDES, "of every learner, before its own train_set", ())
    limits: tuple[LimitEntry, ...] = item(
        Listed(Table(LimitEntry), min_items=0, max_items=100), "how far up the axes metrics stay low", ()
    )
    timeline_s: float = item(
        Number(low=0), "racks: loads over time in bins of this length, figures of them; 0: none", 0.0, "s"
    )
    quoted: tuple[QuotedEntry, ...] = item(
        Listed(Table(QuotedEntry), min_items=0, max_items=10_000), "numbers of papers", ()
    )


def study_keys() -> list[tuple[str, str, str, str, str]]:
    """Every key of a study file: (dotted key, what is allowed, default, unit, meaning)."""
    return list(keys_of(StudyEntry))


def seeds_text(seeds: range) -> str:
    """As options and files have them."""
    return f"{seeds.start}:{seeds.stop}"
