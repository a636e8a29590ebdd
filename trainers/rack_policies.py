"""Policies of racks by name: `RULE`, `RULE:KEY=VALUE,...` or LABEL=RULE becomes what the simulator runs.

The keys are those of the table [rule] of a rack scenario; what a policy says goes before the scenario. A run
of Malcolm, its policy.npz, or what `steelyard export` made of it, plays what was learned and learns no more;
the rule `malcolm` learns as it goes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from steelyard.agents.rules import Contender, Member, rule_names
from steelyard.envs.errors import UserError
from steelyard.envs.rack_native import parse_rule, rack_rule_names
from steelyard.envs.rack_scenario import RackScenario
from steelyard.trainers import malcolm_policy

_LABELLED = re.compile("([^=:]+)=(.+)")


def parse_policies(texts: Iterable[str]) -> list[Contender]:
    """The contenders of a study of racks. UserError for an unknown rule or key, or two of one label."""
    contenders = [parse_policy(text) for text in texts]
    labels = [contender.label for contender in contenders]
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice:
        raise UserError(f"--policy: {twice[0]!r} is given twice; name one of them LABEL=POLICY")
    return contenders


def parse_policy(text: str) -> Contender:
    """What a policy's name stands for in a rack. UserError if it is no rule of racks."""
    labelled = _LABELLED.fullmatch(text)
    label, source = labelled.groups() if labelled else (text, text)
    if malcolm_policy.find(source) or malcolm_policy.find_exported(source):
        return Contender(label, (Member(label, source),))
    try:
        parse_rule(source)
    except UserError as error:
        name = source.partition(":")[0]
        if name in rule_names() and name not in rack_rule_names():
            rules = ", ".join(rack_rule_names())
            raise UserError(f"policy {name!r}: a rule of clusters; the scenario is a rack: {rules}") from None
        raise error
    return Contender(label, (Member(label, source),))


def member_rule(scenario: RackScenario, member: Member, config: Any, *, learning: bool = False) -> Any:
    """native.RackRule that runs a member on a rack, checked. UserError if it does not fit.

    learning: what was learned goes on learning, in each episode from there.
    """
    learned = malcolm_policy.find(member.source)
    exported = None if learned else malcolm_policy.find_exported(member.source)
    if learned:
        rule = malcolm_policy.rule(learned, not learning)
    elif exported:
        rule = malcolm_policy.exported_rule(exported)
    else:
        rule = scenario.to_rule(member.source)
    try:
        rule.check(config)
    except ValueError as error:
        raise UserError(f"policy {member.name}: {error}") from None
    return rule
