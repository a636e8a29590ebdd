"""Study files: which policies are compared on which scenarios, who is trained for it, and what papers say.

    >>> study = load_study("smoke")
    >>> [case.name for case in study.cases], study.learners[0].entry.algo
    (['cluster-a-cpu', 'cluster-b-cpu'], 'rlb-sac')

The dataclasses below are the only place of keys and defaults; bad input is a UserError of one line.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from steelyard.agents import rules
from steelyard.envs.errors import UserError, bad_value, unknown
from steelyard.envs.scenario import Scenario, scenario_names
from steelyard.envs.scenario_parse import (
    Choice,
    Listed,
    Number,
    Table,
    Text,
    Whole,
    item,
    keys_of,
    read_table,
)
from steelyard.envs.toml_text import parse_toml
from steelyard.trainers import algorithms
from steelyard.trainers.commands.common import MAX_EPISODES, parse_seeds
from steelyard.trainers.commands.train import parse_hyper
from steelyard.trainers.rllib import settings as rllib

STUDIES = Path(__file__).resolve().parent / "studies"
HYPER = "algo."
"""Prefix of a learner's hyper-parameters among its overrides."""
LOCAL = "local"
"""The engine that needs no option."""
_MAX_FILE_BYTES = 4_000_000
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
    scenario: str = item(Text(), "trained on: a name, or a file relative to the study's")
    episodes: int = item(Whole(1, MAX_EPISODES), "training episodes of each run")
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
    quoted: tuple[QuotedEntry, ...] = item(
        Listed(Table(QuotedEntry), min_items=0, max_items=10_000), "numbers of papers", ()
    )


@dataclass(frozen=True)
class Case:
    """A row of the study: a scenario and who plays it."""

    name: str
    scenario: Scenario
    source: str
    """What `--scenario` takes."""
    overrides: tuple[str, ...]
    policies: tuple[str, ...]
    group: str


@dataclass(frozen=True)
class Learner:
    """A learner with the scenario that it is trained on."""

    entry: LearnerEntry
    scenario: Scenario
    source: str
    hyper: dict[str, Any]

    @property
    def name(self) -> str:
        return self.entry.name


@dataclass(frozen=True)
class Study:
    """A study file, read and checked."""

    name: str
    sha256: str
    entry: StudyEntry
    cases: tuple[Case, ...]
    learners: tuple[Learner, ...]
    base: Path
    sources: dict[str, str] = field(default_factory=dict)
    """Rule name or policy path of every policy that is no learner, by label."""

    def policies(self) -> list[str]:
        """All labels in order of appearance."""
        return list(dict.fromkeys(label for case in self.cases for label in case.policies))

    def case(self, name: str) -> Case:
        """The case of that name."""
        return next(case for case in self.cases if case.name == name)


def study_names() -> list[str]:
    """Names of the studies that come with the project."""
    return sorted(file.stem for file in STUDIES.glob("*.toml"))


def study_keys() -> list[tuple[str, str, str, str, str]]:
    """Every key of a study file: (dotted key, what is allowed, default, unit, meaning)."""
    return list(keys_of(StudyEntry))


def seeds_text(seeds: range) -> str:
    """As options and files have them."""
    return f"{seeds.start}:{seeds.stop}"


def load_study(source: str) -> Study:
    """The study of that name or file. UserError in one line, naming the study and the key."""
    path = Path(source)
    if source in study_names():
        path = STUDIES / f"{source}.toml"
    elif path.suffix != ".toml":
        raise unknown("study", source, study_names())
    try:
        data = path.read_bytes()[: _MAX_FILE_BYTES + 1]
        text = data.decode()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"study {source}: cannot be read ({reason}); must be a TOML file or a name") from None
    if len(data) > _MAX_FILE_BYTES:
        raise UserError(f"study {source}: is longer than {_MAX_FILE_BYTES} bytes; must be a TOML file")
    tree = parse_toml(text, f"study {source}")
    try:
        return _resolve(path, hashlib.sha256(data).hexdigest(), read_table(StudyEntry, tree, ""))
    except ValueError as error:
        raise UserError(f"study {path.stem}: {error}") from None


def _resolve(path: Path, sha256: str, entry: StudyEntry) -> Study:
    base = path.parent
    learners = tuple(_learner(base, index, each) for index, each in enumerate(entry.learners))
    _check_once("learners", [learner.name for learner in learners])
    cases = tuple(_case(base, index, each, entry) for index, each in enumerate(entry.cases))
    _check_once("cases", [case.name for case in cases])
    study = Study(path.stem, sha256, entry, cases, learners, base)
    names = [learner.name for learner in learners]
    for learner in learners:
        if learner.name in rules.rule_names():
            raise UserError(f"learners: {learner.name!r} is the name of a rule; give the learner another")
    for index, case in enumerate(cases):
        _check_once(f"cases.{index}.policies", case.policies)
        for text in case.policies:
            if text not in names:
                study.sources[text] = _source(base, f"policy of cases.{index}", text, names)
        for learner in learners:
            if learner.name in case.policies and learner.scenario.num_servers != case.scenario.num_servers:
                raise UserError(
                    f"cases.{index}: {learner.name} is trained for {learner.scenario.num_servers} servers, "
                    f"{case.name} has {case.scenario.num_servers}; use `policies` of the case to leave it out"
                )
    _check_names(study)
    return replace(study, cases=tuple(_labelled(case) for case in cases), sources=_by_label(study.sources))


def _check_names(study: Study) -> None:
    """Every learner plays, the reference too, metrics and quoted numbers exist."""
    entry, labels = study.entry, [label_of(text) for text in study.policies()]
    for index, learner in enumerate(study.learners):
        if learner.name not in labels:
            raise UserError(f"learners.{index}: {learner.name!r} is in no case's policies")
    if entry.reference not in labels:
        raise unknown("reference", entry.reference, labels)
    known = metric_names()
    for metric in [*entry.metrics, *(quoted.metric for quoted in entry.quoted)]:
        if metric not in known:
            raise unknown("metric", metric, known)
    for index, quoted in enumerate(entry.quoted):
        cases = {case.name: case for case in study.cases}
        if quoted.case not in cases:
            raise unknown(f"quoted.{index}.case", quoted.case, cases)
        here = [label_of(text) for text in cases[quoted.case].policies]
        if quoted.policy not in here:
            raise unknown(f"quoted.{index}.policy", quoted.policy, here)


def metric_names() -> list[str]:
    """Metrics of an episode, as the simulator names them, and what is derived from them."""
    from steelyard import native

    tiny = Scenario.from_toml(
        'pool.servers = [{ workers = 1 }]\nworkload.arrival = { kind = "poisson", rate = 1 }\n'
        'workload.stages = [{ kind = "cpu", demand = { kind = "exponential", mean_s = 0.1 } }]\n'
        "episode.horizon_s = 2\n"
    )
    (stats,) = native.simulate(tiny.to_native(), tiny.to_rule("lsq"), [0])
    hidden = ("seed", "digest")
    scalars = [name for name, value in stats.items() if isinstance(value, int | float) and name not in hidden]
    return [*scalars, "rejected_share"]


def label_of(text: str) -> str:
    """The label of a policy as a study file names it: LABEL of LABEL=POLICY, else the text itself."""
    label, equals, rest = text.partition("=")
    return label if equals and label and rest else text


def _labelled(case: Case) -> Case:
    return replace(case, policies=tuple(label_of(text) for text in case.policies))


def _by_label(sources: dict[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text, source in sources.items():
        label = label_of(text)
        if found.setdefault(label, source) != source:
            raise UserError(f"policies: {label!r} names both {found[label]} and {source}")
    return found


def _source(base: Path, what: str, text: str, learners: Sequence[str]) -> str:
    """The rule name or the path behind a policy's text."""
    named = text if label_of(text) == text else text.partition("=")[2]
    if named in rules.rule_names():
        return named
    for path in (base / named, Path(named)):
        if path.exists():
            rules.parse_policy(f"x={path}")
            return str(path)
    raise unknown(what, named, [*rules.rule_names(), *learners])


def _case(base: Path, index: int, entry: CaseEntry, study: StudyEntry) -> Case:
    scenario, source = _scenario(base, f"cases.{index}", entry.scenario, entry.set)
    policies = study.policies if entry.policies is None else entry.policies
    policies += tuple(text for text in entry.policies_add if text not in policies)
    if not policies:
        raise UserError(f"cases.{index}.policies: none given, and the study has none; name some")
    return Case(entry.name or scenario.name, scenario, source, entry.set, policies, entry.group)


def _learner(base: Path, index: int, entry: LearnerEntry) -> Learner:
    mine = [text for text in entry.train_set if text.startswith(HYPER)]
    rest = [text for text in entry.train_set if not text.startswith(HYPER)]
    known = algorithms.ALGORITHMS if entry.engine == LOCAL else rllib.ALGORITHMS
    if entry.algo not in known:
        raise unknown(f"learners.{index}.algo", entry.algo, known)
    scenario, source = _scenario(base, f"learners.{index}", entry.scenario, rest)
    return Learner(entry, scenario, source, parse_hyper(mine))


def _scenario(base: Path, key: str, name: str, overrides: Iterable[str]) -> tuple[Scenario, str]:
    """The scenario, and what `--scenario` takes for it."""
    if name not in scenario_names() and name.endswith(".toml"):
        name = str(base / name)
        if Path(name).resolve().is_relative_to(Path.cwd()):
            name = str(Path(name).resolve().relative_to(Path.cwd()))
    try:
        return Scenario.load(name, overrides), name
    except ValueError as error:
        raise UserError(f"{key}: {error}") from None


def _check_once(what: str, names: Sequence[str]) -> None:
    twice = [name for index, name in enumerate(names) if name in names[:index]]
    if twice:
        raise UserError(f"{what}: {twice[0]!r} is given twice; names must differ")
