"""Export: a run's policy becomes a folder that serves it without Python."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from steelyard.agents.rules import POLICY_FILE
from steelyard.deploy import compiler, model_card, onnx_file, policy_file, rack_card, rounding, staging
from steelyard.deploy.policy_file import PolicyFile
from steelyard.deploy.rack_file import RackFile
from steelyard.envs.errors import UserError

FORMS = ("blob", "cpp", "onnx")
WEIGHTS = ("float32", "bf16")
_WRITTEN = frozenset(
    {
        POLICY_FILE,
        compiler.SOURCE,
        compiler.LIBRARY,
        compiler.CLUSTER.header,
        compiler.RACK.header,
        compiler.KERNEL_FOLDER.parts[0],
        model_card.CARD,
        onnx_file.NAME,
    }
)


@dataclass(frozen=True)
class Exported:
    """What an export made: its files, the one to run first, and the time of one decision [ns]."""

    files: tuple[Path, ...]
    cost_ns: float


def export(
    source: str | Path, out: Path, form: str = "blob", *, weights: str = "float32", force: bool = False
) -> Exported:
    """Write the policy of a run directory or policy file to the folder `out`.

    `out` appears whole or stays as it was. UserError (one line) for a damaged source, a folder in the way, a
    missing compiler or a full disk.
    """
    for name, word, allowed in (("--to", form, FORMS), ("--weights", weights, WEIGHTS)):
        if word not in allowed:
            raise UserError(f"{name}: {word!r}; allowed: {', '.join(allowed)}")
    exact = policy_file.read(source)
    policy = exact.rounded() if weights == "bf16" else exact
    staging.check_target(out, force=force, known=_WRITTEN)
    tools = compiler.find_compiler() if form == "cpp" else []
    if form == "onnx":
        onnx_file.check_installed()
    error = rounding.section(rounding.measure(exact, policy)) if weights == "bf16" else []
    with staging.staged(out) as folder:
        names, how_to = _write(policy, folder, form, tools)
        card = folder / model_card.CARD
        runnable = folder / (POLICY_FILE if form == "onnx" else names[0])  # of ONNX the blob is timed
        if isinstance(policy, RackFile):
            cost_ns = rack_card.write(policy, runnable, card, how_to, error)
        else:
            cost_ns = model_card.write(policy, runnable, card, how_to, error)
    return Exported(tuple(out / name for name in (*names, model_card.CARD)), cost_ns)


def _write(
    policy: PolicyFile | RackFile, folder: Path, form: str, tools: list[str]
) -> tuple[list[str], Sequence[str]]:
    """Names of the files of a form, the one to run first, and lines that say how they are used."""
    if form == "cpp":
        kernel = compiler.kernel_of(policy)
        compiler.write_source(policy, folder)
        compiler.build(folder, tools, kernel)
        compiler.check_same(policy.blob, folder / compiler.LIBRARY)
        return [compiler.LIBRARY, compiler.SOURCE], _how_cpp(kernel)
    (folder / POLICY_FILE).write_bytes(policy.blob)
    if form == "onnx":
        onnx_file.write(policy, folder / onnx_file.NAME)
        return [onnx_file.NAME, POLICY_FILE], onnx_file.how_to(policy)
    return [POLICY_FILE], _how_blob()


def _how_blob() -> list[str]:
    return ["```", f"steelyard simulate --scenario NAME --policy {POLICY_FILE}", "```"]


def _how_cpp(kernel: compiler.Kernel) -> list[str]:
    return [
        "```",
        f"steelyard simulate --scenario NAME --policy ./{compiler.LIBRARY}",
        "```",
        "",
        f"From C or C++: the functions of `{kernel.header}`, in `{compiler.LIBRARY}`.",
        "To build it again, in this folder:",
        "",
        "```",
        shlex.join(compiler.build_command(["g++"], kernel)),
        "```",
    ]
