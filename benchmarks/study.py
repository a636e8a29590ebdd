"""Study files: which policies are compared on which scenarios, who is trained for it, and what papers say.

    >>> study = load_study("smoke")
    >>> [case.name for case in study.cases], study.learners[0].name
    (['cluster-a-cpu', 'cluster-b-cpu'], 'rlb-sac')

Keys and defaults: study_entry.py. Bad input is a UserError of one line.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from steelyard.agents import rules
from steelyard.benchmarks import rack_cells
from steelyard.benchmarks.study_entry import (
    FROZEN,
    HYPER,
    LEARNING,
    LOCAL,
    CaseEntry,
    LearnerEntry,
    StudyEntry,
)
from steelyard.envs import rack_native
from steelyard.envs.errors import UserError, bad_value, unknown
from steelyard.envs.scenario import Scenario
from steelyard.envs.scenario_file import CLUSTER, RACK
from steelyard.envs.scenario_parse import read_table
from steelyard.envs.toml_text import parse_toml
from steelyard.envs.worlds import AnyScenario, all_scenario_names, load_scenario, world
from steelyard.trainers import algorithms
from steelyard.trainers.commands.train import parse_hyper
from steelyard.trainers.rllib import settings as rllib

STUDIES = Path(__file__).resolve().parent / "studies"
_MAX_FILE_BYTES = 4_000_000


@dataclass(frozen=True)
class Case:
    """A row of the study: a scenario and who plays it."""

    name: str
    scenario: AnyScenario
    source: str
    """What `--scenario` takes."""
    overrides: tuple[str, ...]
    policies: tuple[str, ...]
    group: str
    x: float | None = None
    """Its value on the axis of its group; None if there is none."""
    learners: Mapping[str, str] = field(default_factory=dict)
    """Name of the learner that plays under a label."""


@dataclass(frozen=True)
class Learner:
    """A learner with the scenario that it is trained on."""

    entry: LearnerEntry
    scenario: AnyScenario
    source: str
    overrides: tuple[str, ...]
    """What `--set` takes, hyper-parameters included."""
    hyper: dict[str, Any]
    name: str
    """The entry's; with the case or group for which it is trained, if it is for one."""


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

    @property
    def world(self) -> str:
        """The world of its scenarios: `cluster` or `rack`."""
        return world(self.cases[0].scenario)

    def policies(self) -> list[str]:
        """All labels in order of appearance."""
        return list(dict.fromkeys(label for case in self.cases for label in case.policies))

    def case(self, name: str) -> Case:
        """The case of that name."""
        return next(case for case in self.cases if case.name == name)

    def axes(self) -> dict[str, list[Case]]:
        """The cases of every group that has an axis, by group."""
        found: dict[str, list[Case]] = {}
        for case in self.cases:
            if case.x is not None:
                found.setdefault(case.group, []).append(case)
        return found


def study_names() -> list[str]:
    """Names of the studies that come with the project."""
    return sorted(file.stem for file in STUDIES.glob("*.toml"))


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
    cases = [case for index, each in enumerate(entry.cases) for case in _cases(base, index, each, entry)]
    _check_once("cases", [case.name for case in cases])
    _check_world([case.scenario for case in cases], "cases")
    _check_once("learners", [each.name for each in entry.learners])
    learners: dict[str, Learner] = {}
    for index, each in enumerate(entry.learners):
        key = f"learners.{index}"
        if each.name in rules.rule_names() or (world(cases[0].scenario) == RACK and _is_rule(each.name)):
            raise UserError(f"learners: {each.name!r} is the name of a rule; give the learner another")
        for place, case in enumerate(cases):
            if each.name in case.policies:
                learner = _learner(base, key, each, entry, case, cases)
                learners.setdefault(learner.name, learner)
                _check_size(learner, case)
                cases[place] = replace(case, learners={**case.learners, each.name: learner.name})
    study = Study(path.stem, sha256, entry, tuple(cases), tuple(learners.values()), base)
    names = [each.name for each in entry.learners]
    for case in cases:
        _check_once(f"case {case.name}: policies", case.policies)
        for text in case.policies:
            if text not in names:
                study.sources[text] = _source(study, f"policy of {case.name}", text, names)
    _check_names(study)
    return replace(study, cases=tuple(_labelled(case) for case in cases), sources=_by_label(study.sources))


def _check_world(scenarios: Sequence[AnyScenario], what: str) -> None:
    first = world(scenarios[0])
    for scenario in scenarios:
        if world(scenario) != first:
            raise UserError(
                f"{what}: {scenarios[0].name!r} is of the world {first!r}, {scenario.name!r} of "
                f"{world(scenario)!r}; a study is of one world"
            )


def _check_size(learner: Learner, case: Case) -> None:
    """UserError if what the learner learns does not fit the case."""
    if learner.scenario.num_servers != case.scenario.num_servers:
        raise UserError(
            f"case {case.name}: {learner.name} is trained for {learner.scenario.num_servers} servers, "
            f"{case.name} has {case.scenario.num_servers}; use `policies` of the case to leave it out"
        )


def _check_names(study: Study) -> None:
    """Every learner plays, the reference too, metrics and quoted numbers exist."""
    entry, labels = study.entry, [label_of(text) for text in study.policies()]
    for index, learner in enumerate(entry.learners):
        if learner.name not in labels:
            raise UserError(f"learners.{index}: {learner.name!r} is in no case's policies")
    if entry.reference not in labels:
        raise unknown("reference", entry.reference, labels)
    known = metric_names(study.world)
    told = [*(each.metric for each in entry.quoted), *(each.metric for each in entry.limits)]
    for metric in [*entry.metrics, *told]:
        if metric not in known:
            raise unknown("metric", metric, known)
    for index, quoted in enumerate(entry.quoted):
        cases = {case.name: case for case in study.cases}
        if quoted.case not in cases:
            raise unknown(f"quoted.{index}.case", quoted.case, cases)
        here = [label_of(text) for text in cases[quoted.case].policies]
        if quoted.policy not in here:
            raise unknown(f"quoted.{index}.policy", quoted.policy, here)
    for index, limit in enumerate(entry.limits):
        if limit.policy and limit.policy not in labels:
            raise unknown(f"limits.{index}.policy", limit.policy, labels)
    if entry.timeline_s and study.world != RACK:
        raise bad_value("timeline_s", entry.timeline_s, "0 for scenarios of clusters")


def metric_names(of: str = CLUSTER) -> list[str]:
    """Metrics of an episode, as the simulator names them, and what is derived from them."""
    if of == RACK:
        return rack_cells.metric_names()
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
    return label if equals and label and rest and ":" not in label else text


def _labelled(case: Case) -> Case:
    return replace(case, policies=tuple(label_of(text) for text in case.policies))


def _by_label(sources: dict[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text, source in sources.items():
        label = label_of(text)
        if found.setdefault(label, source) != source:
            raise UserError(f"policies: {label!r} names both {found[label]} and {source}")
    return found


def _is_rule(name: str) -> bool:
    return name in rack_native.rack_rule_names()


def _source(study: Study, what: str, text: str, learners: Sequence[str]) -> str:
    """The rule (of a rack: with its parameters) or the path behind a policy's text."""
    named = text if label_of(text) == text else text.partition("=")[2]
    if study.world == RACK:
        return rack_cells.source(study.base, what, named, learners)
    if named in rules.rule_names():
        return named
    for path in (study.base / named, Path(named)):
        if path.exists():
            rules.parse_policy(f"x={path}")
            return str(path)
    raise unknown(what, named, [*rules.rule_names(), *learners])


def _cases(base: Path, index: int, entry: CaseEntry, study: StudyEntry) -> list[Case]:
    """The case; with an axis one for each of its values."""
    policies = study.policies if entry.policies is None else entry.policies
    policies += tuple(text for text in entry.policies_add if text not in policies)
    if not policies:
        raise UserError(f"cases.{index}.policies: none given, and the study has none; name some")
    found = []
    for value in entry.values or (None,):
        overrides = entry.set
        if value is not None:
            overrides += (f"{entry.axis}={int(value) if value.is_integer() else value!r}",)
        scenario, source = _scenario(base, f"cases.{index}", entry.scenario, overrides)
        name, group = entry.name or scenario.name, entry.group
        if value is not None:
            name, group = f"{name}, {entry.axis.rpartition('.')[2]} {value:g}", entry.group or name
        found.append(Case(name, scenario, source, overrides, policies, group, value))
    return found


def _learner(
    base: Path, key: str, entry: LearnerEntry, study: StudyEntry, case: Case, cases: Sequence[Case]
) -> Learner:
    """Who plays a case under the entry's name."""
    own = (*study.train_set, *entry.train_set)
    name, where = entry.name, entry.scenario
    before: tuple[str, ...] = ()
    if not where:
        taught = _taught(key, entry, case, cases)
        where, before = taught.source, taught.overrides
        name = f"{name} ({taught.name if entry.at is None else taught.group})"
    overrides = (*before, *own)
    mine = [text for text in overrides if text.startswith(HYPER)]
    rest = [text for text in overrides if not text.startswith(HYPER)]
    known = algorithms.ALGORITHMS if entry.engine == LOCAL else rllib.ALGORITHMS
    if entry.algo not in known:
        raise unknown(f"{key}.algo", entry.algo, known)
    scenario, source = _scenario(base, key, where, rest)
    _check_world([case.scenario, scenario], key)
    local = entry.engine == LOCAL
    if (algorithms.ALGORITHMS[entry.algo].world if local else CLUSTER) != world(scenario):
        raise UserError(f"{key}.algo: {entry.algo!r} does not play the world {world(scenario)!r}")
    if entry.play == LEARNING and world(scenario) != RACK:
        raise bad_value(f"{key}.play", entry.play, f"{FROZEN!r} for a learner of clusters")
    return Learner(entry, scenario, source, overrides, parse_hyper(mine), name)


def _taught(key: str, entry: LearnerEntry, case: Case, cases: Sequence[Case]) -> Case:
    """The case on which a learner is trained that plays this one."""
    if entry.at is None:
        return case
    for other in cases:
        if other.x == entry.at and other.group == case.group:
            return other
    raise UserError(f"{key}.at: {entry.at:g} is no value of the axis of {case.group or case.name!r}")


def _scenario(base: Path, key: str, name: str, overrides: Iterable[str]) -> tuple[AnyScenario, str]:
    """The scenario, and what `--scenario` takes for it."""
    if name not in all_scenario_names() and name.endswith(".toml"):
        name = str(base / name)
        if Path(name).resolve().is_relative_to(Path.cwd()):
            name = str(Path(name).resolve().relative_to(Path.cwd()))
    try:
        return load_scenario(name, overrides), name
    except ValueError as error:
        raise UserError(f"{key}: {error}") from None


def _check_once(what: str, names: Sequence[str]) -> None:
    twice = [name for index, name in enumerate(names) if name in names[:index]]
    if twice:
        raise UserError(f"{what}: {twice[0]!r} is given twice; names must differ")
