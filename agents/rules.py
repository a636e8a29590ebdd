"""Policies by name: how RULE, RUN_DIR, BLOB or a compiled .so becomes what the simulator runs.

A policy is named by
- a rule (`sed`), with the weights and parameters of the scenario;
- `tuned-RULE` (`tuned-sed`), the rule with weights found by search on training seeds (`steelyard tune`);
- a run directory of `steelyard train`, through its policy.bin;
- a directory of run directories, which is one learner with several training seeds;
- a policy file made by `steelyard export`, a blob or a shared object;
- any of these as LABEL=..., under which it appears in results.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from steelyard import native
from steelyard.agents import malcolm_file

LEARNED = "policy"
"""Name of the native rule that a learned policy drives."""
TUNED = "tuned-"
"""Prefix of a rule whose weights were searched."""
TUNABLE = ("wcmp", "sed", "sed2")
"""Rules that follow configured weights and nothing else."""
POLICY_FILE = "policy.bin"
_RUN_MARK = "config.json"


@dataclass(frozen=True)
class Member:
    """One thing that can be run: the name in results and a rule name or policy file."""

    name: str
    source: str


@dataclass(frozen=True)
class Contender:
    """A policy of a study: one member, or one for each training run of a learner."""

    label: str
    members: tuple[Member, ...]

    @property
    def tuned_rule(self) -> str | None:
        """The rule to tune for `tuned-RULE`; None for all others."""
        source = self.members[0].source
        return source.removeprefix(TUNED) if source.startswith(TUNED) else None


def rule_names() -> list[str]:
    """Every name that stands for a policy without a file."""
    return [name for name in native.rule_names() if name != LEARNED] + [TUNED + rule for rule in TUNABLE]


def parse_policies(texts: Iterable[str]) -> list[Contender]:
    """The contenders of a study; ValueError if two share a label."""
    contenders = [parse_policy(text) for text in texts]
    labels = [contender.label for contender in contenders]
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice:
        raise ValueError(f"--policy: {twice[0]!r} is given twice; name one of them LABEL=POLICY")
    return contenders


def parse_policy(text: str) -> Contender:
    """What a policy's name stands for. ValueError (one line) if it stands for nothing that can run."""
    label, equals, rest = text.partition("=")
    if equals and label and rest and not Path(text).exists():
        return Contender(label, _members(label, rest))
    return Contender(text, _members(text, text))


def policy_config(
    path: str, num_servers: int, num_agents: int, *, cycle_actors: bool = False
) -> native.RuleConfig:
    """The rule that runs a policy file; ValueError if the file is damaged or made for another pool.

    cycle_actors: balancer i follows actor i mod K, whatever the numbers of balancers and of actors K.
    """
    try:
        policy = native.Policy(path)
    except (ValueError, OSError) as error:
        raise ValueError(f"policy {path}: {error}") from error
    if policy.num_servers != num_servers:
        raise ValueError(
            f"policy {path}: made for {policy.num_servers} servers, the scenario has {num_servers}; "
            "use a policy trained on a pool of that size"
        )
    if policy.central_agents not in (0, num_agents):
        raise ValueError(
            f"policy {path}: central, made for {policy.central_agents} load balancers, the scenario has "
            f"{num_agents}; use a policy trained with that many balancers"
        )
    if not cycle_actors and policy.num_actors not in (1, num_agents):
        raise ValueError(
            f"policy {path}: has {policy.num_actors} actors, the scenario has {num_agents} "
            "load balancers; use a policy with one actor or as many as there are balancers, "
            "or set rule.cycle_actors=true"
        )
    config = native.RuleConfig(LEARNED)
    config.policy = policy
    config.cycle_actors = cycle_actors
    return config


def tuned_file(directory: Path, scenario_name: str, rule: str) -> Path:
    """Where the tuned weights of a rule on a scenario are kept in a directory."""
    return directory / f"{file_stem(scenario_name)}.{rule}.json"


def file_stem(name: str) -> str:
    """A name given by a person as part of a file's name: without separators, spaces or leading dots."""
    return re.sub("[^A-Za-z0-9._-]", "_", name).lstrip(".") or "_"


def tuned_directories() -> list[Path]:
    """Where tuned weights are looked for: ./tuned, then those that come with the project."""
    return [Path("tuned"), Path(__file__).resolve().parent.parent / "benchmarks" / "results" / "tuned"]


def stored_weights(
    scenario_name: str, rule: str, digest: str, convention: str, directories: Iterable[Path]
) -> list[float] | None:
    """Tuned weights from the first directory whose file is for exactly this scenario; None if none is.

    digest: of everything in the scenario that the optimum depends on, so a changed scenario finds nothing.
    """
    for directory in directories:
        path = tuned_file(directory, scenario_name, rule)
        if not path.is_file():
            continue
        try:
            stored = json.loads(path.read_text())
            if (stored["digest"], stored["convention"], stored["rule"]) == (digest, convention, rule):
                return [float(weight) for weight in stored["weights"]]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path}: not a file of `steelyard tune` ({error}); delete it or tune again"
            ) from error
    return None


def _members(label: str, text: str) -> tuple[Member, ...]:
    if text in rule_names():
        return (Member(label, text),)
    path = Path(text)
    if path.is_file():
        return (Member(label, str(path)),)
    if path.is_dir():
        return _run_members(label, path)
    raise ValueError(_unknown(text))


def _run_members(label: str, path: Path) -> tuple[Member, ...]:
    """The policy of a run directory, or those of all run directories in it."""
    if (path / POLICY_FILE).is_file():
        return (Member(label, str(path / POLICY_FILE)),)
    runs = [] if (path / _RUN_MARK).exists() else sorted(_runs_in(path))
    incomplete = [run for run in runs or [path] if not (run / POLICY_FILE).is_file()]
    if incomplete and (incomplete[0] / malcolm_file.FILE).is_file():
        raise ValueError(f"policy {incomplete[0]}: learned by servers of a rack; the scenario is a cluster")
    if incomplete:
        raise ValueError(
            f"policy {incomplete[0]}: no {POLICY_FILE} in it; either training has not saved yet "
            "or it is not a run directory of `steelyard train`"
        )
    return tuple(Member(f"{label}/{run.name}", str(run / POLICY_FILE)) for run in runs)


def _runs_in(path: Path) -> list[Path]:
    return [sub for sub in path.iterdir() if (sub / _RUN_MARK).is_file() or (sub / POLICY_FILE).is_file()]


def _unknown(text: str) -> str:
    names = rule_names()
    near = difflib.get_close_matches(text, names, n=3)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return f"policy {text!r}: no rule, run directory or policy file; {hint}rules: {', '.join(names)}"
