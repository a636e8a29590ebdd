"""The leaderboard: pages made from a study's summary.json and manifest.json alone, their top for the README.

Score of an episode: mean sojourn of the reference on the same flows / own. That of a policy is the
interquartile mean over all cases, training runs and evaluation seeds (rliable's aggregate): 1 is the
reference, more is better.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steelyard.agents.rules import TUNED
from steelyard.benchmarks import page as pages
from steelyard.benchmarks.page import Block, Code, Heading, Inline, Link, Picture, Table, anchor, text
from steelyard.benchmarks.study_tables import BUDGET_HEADER, budget_cells, estimate, number, percent
from steelyard.benchmarks.summary import RIVAL
from steelyard.envs.errors import UserError
from steelyard.trainers import results

TITLE = "Leaderboard"
BEGIN, END = "<!-- leaderboard -->", "<!-- /leaderboard -->"
_P99 = "sojourn_p99_s"

NOTHING = "nothing"
OWN = "own measurements"
WEIGHTS = "configured weights"
TOLD = {
    **dict.fromkeys(("ecmp", "lsq", "lsq2", "rr", "maglev", "least_request"), NOTHING),
    **dict.fromkeys(("hlb", "hlb2", "peak_ewma"), OWN),
    **dict.fromkeys(("wcmp", "sed", "sed2"), WEIGHTS),
    "awcmp": "configured weights, probed occupancy",
    "charon_sapp": "load reported by servers",
    "charon_wsapp": "load reported by servers, configured weights",
    "c3": "queues and service times reported by servers",
    "prequal": "answers of servers to its probes",
    **dict.fromkeys(("gsq", "gsq2"), "exact occupancy"),
    "least_load_noise": "occupancy with noise",
    "oracle": "exact demands and completions",
    "oracle2": "exact demands and completions",
    "oracle_srt": "exact remaining work",
}
"""What a rule is told when it decides, apart from the flows that it has sent itself."""
TUNED_TOLD = "weights tuned on this very scenario"
_TOLD_CENTRAL = "own measurements of all balancers"
_CENTRAL = ("centr-lb",)


@dataclass(frozen=True)
class Board:
    """Results of a study, as its files hold them."""

    summary: Mapping[str, Any]
    manifest: Mapping[str, Any]
    pictures: tuple[Picture, ...] = ()

    @property
    def ranking(self) -> list[str]:
        """Policies with a score, best first; those that did not play every case come last."""
        overall = self.summary["overall"]
        return sorted(overall, key=lambda p: (-len(overall[p]["cases"]), -overall[p]["score"]["value"]))

    @property
    def seeds(self) -> str:
        """Evaluation seeds as options have them."""
        return f"{self.summary['seeds']['first']}:{self.summary['seeds']['end']}"

    def learner(self, label: str) -> Mapping[str, Any] | None:
        """The manifest's entry of a learner; None for all others."""
        return self.manifest["learners"].get(label)


def load(directory: Path) -> Board:
    """The board of a results directory. UserError if it holds no results of a study that has ended."""
    try:
        summary = json.loads((directory / "summary.json").read_text("utf-8"))
        manifest = json.loads((directory / "manifest.json").read_text("utf-8"))
        board = Board(summary, manifest, _pictures(directory))
        board.ranking, board.seeds, manifest["policies"], manifest["cases"], manifest["learners"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{directory}: no results of a study ({error}); `steelyard study leaderboard` makes them"
        ) from None
    return board


def write(option: str, directory: Path, board: Board) -> list[Path]:
    """Write README.md and index.html beside the results; their paths."""
    blocks = page(board)
    files = {"README.md": pages.markdown(TITLE, blocks), "index.html": pages.to_html(TITLE, blocks)}
    for name, content in files.items():
        results.write_file(option, directory / name, content.encode())
    return [directory / name for name in files]


def with_top(readme: Path, board: Board, count: int) -> str:
    """The README's text with the best `count` policies between the markers; UserError without these."""
    try:
        before = readme.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise UserError(f"--readme: cannot read {readme}: {error}") from None
    if before.count(BEGIN) != 1 or before.count(END) != 1 or before.index(BEGIN) > before.index(END):
        raise UserError(f"--readme: {readme} must hold {BEGIN} and, later, {END} once each")
    head, rest = before.split(BEGIN)
    table = pages.markdown_table(top_table(board, count))
    return f"{head}{BEGIN}\n{table}\n{END}{rest.split(END)[1]}"


def page(board: Board) -> list[Block]:
    """The whole page."""
    reference = board.summary["reference"]
    cases = list(board.summary["cases"])
    blocks: list[Block] = [
        text(
            f"Score: mean sojourn of {reference} on the same flows / own, interquartile mean over "
            f"{len(cases)} scenarios, training runs and evaluation seeds {board.seeds}, with 95 % stratified "
            f"bootstrap intervals; 1 is {reference}, more is better. Columns of scenarios: interquartile "
            "mean of the mean sojourn [s]. Budgets are those of one training run. Every number leads to the "
            "command that gives it. `make leaderboard` makes this page again."
        ),
        ranking_table(board),
    ]
    verdict = losers(board)
    if verdict:
        blocks.append(text(*verdict))
    blocks += board.pictures
    blocks.append(Heading("Where each number comes from"))
    blocks.append(
        text(
            f"Evaluation seeds {board.seeds}, {board.summary['convention']}. Scenarios in full, versions, "
            "seeds and SHA-256 of every policy: ",
            Link("manifest.json", "manifest.json"),
            ".",
        )
    )
    for label in board.ranking:
        blocks += _section(board, label)
    return blocks


def ranking_table(board: Board) -> Table:
    """Rank, policy, scores, sojourn by case, rejections, messages, what it is told, budget."""
    cases = list(board.summary["cases"])
    header = ["rank", "policy", "score", "p99 score", *cases, "rejected [%]", "messages per flow", "told"]
    header += BUDGET_HEADER
    rows: list[list[Inline]] = []
    for rank, label in enumerate(board.ranking, 1):
        found, own = board.summary["overall"][label], f"#{_policy_anchor(label)}"
        row: list[Inline] = [str(rank), Link(_name(board, label), own), Link(estimate(found["score"]), own)]
        row.append(_link(estimate(found["other_scores"].get(_P99)), own))
        for case in cases:
            policy = _policy(board, case, label)
            value = "" if policy is None else estimate(policy["metrics"][board.summary["metrics"][0]]["iqm"])
            row.append(_link(value, f"#{_cell_anchor(label, case)}"))
        row += [_link(_rejected(board, label), own), _link(_messages(board, label), own), told(board, label)]
        learner = board.learner(label)
        row += ["", "", ""] if learner is None else [_link(cell, own) for cell in budget_cells(learner)]
        rows.append(row)
    filled = [index for index in range(len(header)) if any(row[index] for row in rows)]
    return Table([header[i] for i in filled], [[row[i] for i in filled] for row in rows])


def top_table(board: Board, count: int) -> Table:
    """The first rows, for a page elsewhere."""
    header = ["", "policy", "score", "p99 score", "told"]
    rows: list[list[Inline]] = []
    for rank, label in enumerate(board.ranking[:count], 1):
        found = board.summary["overall"][label]
        p99 = estimate(found["other_scores"].get(_P99))
        rows.append([str(rank), _name(board, label), estimate(found["score"]), p99, told(board, label)])
    return Table(header, rows)


def losers(board: Board) -> list[str]:
    """A sentence on the learners that do not beat LSQ."""
    overall = board.summary["overall"]
    gaps = {label: found["versus"].get(RIVAL) for label, found in overall.items() if board.learner(label)}
    lost = [label for label, gap in gaps.items() if gap is not None and not gap["low"] > 0]
    if not lost:
        return []
    notes = [f" {label}: {note}" for label in lost if (note := board.manifest["learners"][label]["note"])]
    return [
        f"Not better than {RIVAL}, by the interval of the difference of scores: {', '.join(lost)}.",
        *notes,
    ]


def told(board: Board, label: str) -> str:
    """What a policy is told when it decides; empty if nobody has said."""
    learner = board.learner(label)
    if learner is not None:
        return _TOLD_CENTRAL if learner["algo"] in _CENTRAL else OWN
    rule = board.manifest["policies"].get(label, {}).get("rule", "")
    return TUNED_TOLD if rule.startswith(TUNED) else TOLD.get(rule, "")


def evaluate_command(board: Board, label: str, case: str) -> str:
    """The command that gives a policy's numbers on a case, beside the reference's."""
    where, reference = board.manifest["cases"][case], board.summary["reference"]
    words = ["steelyard", "evaluate", "--scenario", where["source"]]
    for override in where["set"]:
        words += ["--set", override]
    for each in dict.fromkeys((label, reference)):
        words += ["--policy", _source(board, each)]
    words += ["--seeds", board.seeds]
    if board.summary["convention"] != "uncensored":
        words += ["--convention", board.summary["convention"]]
    return shlex.join(words)


def _section(board: Board, label: str) -> list[Block]:
    """Where the numbers of a policy come from: an anchor for each case."""
    blocks: list[Block] = [Heading(_name(board, label), 3, _policy_anchor(label))]
    learner = board.learner(label)
    if learner is not None:
        seeds = f"{learner['seeds']['first']}:{learner['seeds']['end']}"
        spent = ", ".join(
            f"{value} {name}"
            for value, name in zip(budget_cells(learner), BUDGET_HEADER, strict=True)
            if value
        )
        blocks.append(
            text(
                f"Trained by {learner['algo']} ({learner['engine']}) on {learner['source']}, "
                f"{learner['episodes']} episodes, training seeds {seeds}"
                f"{f'; a run: {spent}' if spent else ''}. {learner['note']}"
            )
        )
        blocks.append(Code("\n".join(run["command"] for run in learner["runs"])))
        header = ["training run", "manifest of the run", "SHA-256 of the policy"]
        rows = [
            [run["name"], run["manifest"], run["policy_sha256"] or "not finished"] for run in learner["runs"]
        ]
        blocks.append(Table(header, rows, words=True))
    for case in board.summary["cases"]:
        policy = _policy(board, case, label)
        if policy is None:
            continue
        blocks += [
            Heading(f"{label} on {case}", 4, _cell_anchor(label, case)),
            text(_sentence(policy)),
            Code(evaluate_command(board, label, case)),
        ]
    return blocks


def _sentence(policy: Mapping[str, Any]) -> str:
    """All numbers of a policy on a case."""
    parts = [f"{name} {estimate(metric['iqm'])}" for name, metric in policy["metrics"].items()]
    for name, gap in policy["versus"].items():
        parts.append(
            f"against {name} {percent(gap['relative'])} %, P(better) {estimate(gap['improvement'], '.2f')}"
        )
    runs = f"{policy['runs']} training runs x " if policy["runs"] > 1 else ""
    return "; ".join(parts) + f" ({runs}{policy['seeds']} seeds)."


def _source(board: Board, label: str) -> str:
    """What `--policy` takes."""
    learner = board.learner(label)
    if learner is not None:
        return f"{label}={learner['directory']}"
    found = board.manifest["policies"][label]
    source = found.get("rule") or found["file"]
    return label if source == label else f"{label}={source}"


def _policy(board: Board, case: str, label: str) -> Mapping[str, Any] | None:
    return board.summary["cases"][case]["policies"].get(label)


def _mean(board: Board, label: str, share: str, whole: str) -> float | None:
    """Sum over cases of one mean over that of another; None where the simulator does not count it."""
    found = [_policy(board, case, label) for case in board.summary["cases"]]
    means = [policy["means"] for policy in found if policy is not None]
    if not means or any(each.get(share) is None or not each.get(whole) for each in means):
        return None
    return sum(each[share] for each in means) / sum(each[whole] for each in means)


def _rejected(board: Board, label: str) -> str:
    share = _mean(board, label, "rejected", "flows")
    return "" if share is None else number(100 * share, ".2f")


def _messages(board: Board, label: str) -> str:
    count = _mean(board, label, "messages", "arrived")
    return "" if count is None else number(count, ".3g")


def _name(board: Board, label: str) -> str:
    """The label; learners stand out."""
    return label if board.learner(label) is None else f"{label} (learned)"


def _link(words: str, href: str) -> Inline:
    return Link(words, href) if words else ""


def _policy_anchor(label: str) -> str:
    return f"policy-{anchor(label)}"


def _cell_anchor(label: str, case: str) -> str:
    return f"{anchor(label)}--on--{anchor(case)}"


def _pictures(directory: Path) -> tuple[Picture, ...]:
    path = directory / "profiles.png"
    caption = "Performance profiles over all scenarios: share of episodes above a score; higher is better."
    return (Picture("profiles", caption, path.read_bytes()),) if path.is_file() else ()
