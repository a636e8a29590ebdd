"""Export: a run's policy becomes a folder that serves it without Python."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from steelyard.agents.rules import POLICY_FILE
from steelyard.deploy import compiler, model_card, policy_file, staging
from steelyard.envs.errors import UserError

FORMS = ("blob", "cpp")
_WRITTEN = frozenset(
    {
        POLICY_FILE,
        compiler.SOURCE,
        compiler.LIBRARY,
        compiler.HEADER,
        compiler.KERNEL_FOLDER.parts[0],
        model_card.CARD,
    }
)


@dataclass(frozen=True)
class Exported:
    """What an export made: its files, the one to run first, and the time of one inference [ns]."""

    files: tuple[Path, ...]
    cost_ns: float


def export(source: str | Path, out: Path, form: str = "blob", *, force: bool = False) -> Exported:
    """Write the policy of a run directory or policy file to the folder `out`.

    `out` appears whole or stays as it was. UserError (one line) for a damaged source, a folder in the way, a
    missing compiler or a full disk.
    """
    if form not in FORMS:
        raise UserError(f"--to: {form!r}; allowed: {', '.join(FORMS)}")
    policy = policy_file.read(source)
    staging.check_target(out, force=force, known=_WRITTEN)
    tools = compiler.find_compiler() if form == "cpp" else []
    with staging.staged(out) as folder:
        if form == "cpp":
            compiler.write_source(policy, folder)
            compiler.build(folder, tools)
            compiler.check_same(policy.blob, folder / compiler.LIBRARY)
            name, how_to = compiler.LIBRARY, _how_cpp()
        else:
            (folder / POLICY_FILE).write_bytes(policy.blob)
            name, how_to = POLICY_FILE, _how_blob()
        cost_ns = model_card.write(policy, folder / name, folder / model_card.CARD, how_to)
    names = [name, compiler.SOURCE, model_card.CARD] if form == "cpp" else [name, model_card.CARD]
    return Exported(tuple(out / name for name in names), cost_ns)


def _how_blob() -> list[str]:
    return ["```", f"steelyard simulate --scenario NAME --policy {POLICY_FILE}", "```"]


def _how_cpp() -> list[str]:
    return [
        "```",
        f"steelyard simulate --scenario NAME --policy ./{compiler.LIBRARY}",
        "```",
        "",
        f"From C or C++: the functions of `{compiler.HEADER}`, in `{compiler.LIBRARY}`.",
        "To build it again, in this folder:",
        "",
        "```",
        shlex.join(compiler.build_command(["g++"])),
        "```",
    ]
