"""The policy compiler: a policy file becomes C++ source, and that a shared object with a C face.

The kernel of native/core is copied beside the source, so that the folder builds on a machine without this
project. Compiled by the core's flags it gives the bits of the blob; `check_same` holds every export to that.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from steelyard import native
from steelyard.deploy import cpp_source, rack_file, rack_source
from steelyard.deploy.policy_file import PolicyFile
from steelyard.deploy.rack_file import RackFile
from steelyard.envs.errors import UserError

SOURCE, LIBRARY = "policy.cpp", "policy.so"
KERNEL_FOLDER = Path("native", "core")
_INCLUDE = re.compile(r'^#include "native/core/([a-z0-9_]+\.h)"', re.MULTILINE)
_LINK_FLAGS = ("-shared", "-Wl,--as-needed", "-Wl,-z,defs")
_CHECK_STEPS = 32
_CHECK_EVENTS = 400
_MAX_SHOWN = 200

Policy = PolicyFile | RackFile


@dataclass(frozen=True)
class Kernel:
    """What a kind of policy is compiled with."""

    header: str
    """Its C face."""
    face: str
    """The body of that."""
    link: tuple[str, ...] = ()
    """Further flags of the linker."""


CLUSTER = Kernel("policy_c.h", "policy_face.h")
RACK = Kernel("rack_policy_c.h", "rack_policy_face.h", ("-static-libstdc++", "-static-libgcc"))


def kernel_of(policy: Policy) -> Kernel:
    """What a policy is compiled with."""
    return RACK if isinstance(policy, RackFile) else CLUSTER


def kernel_files(kernel: Kernel) -> list[str]:
    """The files of native/core that a compiled policy is made of, found by their includes."""
    found: set[str] = set()
    folder, left = native.include_dir() / KERNEL_FOLDER, [kernel.face]
    while left:
        name = left.pop()
        if name in found:
            continue
        found.add(name)
        left += _INCLUDE.findall((folder / name).read_text("utf-8"))
        if name.endswith(".h"):
            left += _bodies(folder, Path(name).stem)
    return sorted(found)


def _bodies(folder: Path, stem: str) -> list[str]:
    """The sources of a header: stem.cc, and each stem_part.cc that has no header of its own."""
    parts = (path for path in folder.glob(f"{stem}_*.cc") if not path.with_suffix(".h").is_file())
    return [path.name for path in (folder / f"{stem}.cc", *parts) if path.is_file()]


def find_compiler() -> list[str]:
    """The C++ compiler, $CXX or g++, as the start of a command; UserError if it is not installed."""
    command = shlex.split(os.environ.get("CXX") or "g++")
    if not command or shutil.which(command[0]) is None:
        name = command[0] if command else ""
        raise UserError(
            f"--to cpp: no C++ compiler {name!r} found; install g++ or name one in CXX, or use --to blob"
        )
    return command


def build_command(compiler: list[str], kernel: Kernel = CLUSTER) -> list[str]:
    """The command that builds the library, to be run in the export's folder."""
    sources = [str(KERNEL_FOLDER / name) for name in kernel_files(kernel) if name.endswith(".cc")]
    flags = [*native.compile_flags(), *_LINK_FLAGS, *kernel.link, "-I."]
    return [*compiler, *flags, SOURCE, *sources, "-o", LIBRARY]


def write_source(policy: Policy, folder: Path) -> None:
    """Write policy.cpp, the kernel that it needs and the C header into `folder`."""
    made_with = kernel_of(policy)
    heading = [
        f"A load-balancing policy, written by steelyard {metadata.version('steelyard')}; not to be edited.",
        f"From a policy file with SHA-256 {policy.sha256}.",
        f"Its C face is {made_with.header}. To build it:",
        f"  {shlex.join(build_command(['g++'], made_with))}",
    ]
    if isinstance(policy, RackFile):
        source = rack_source.generate(policy.spec, heading)
    else:
        source = cpp_source.generate(native.pack_policy(policy.blob), heading)
    (folder / SOURCE).write_text(source, "utf-8")
    kernel = folder / KERNEL_FOLDER
    kernel.mkdir(parents=True)
    for name in kernel_files(made_with):
        shutil.copyfile(native.include_dir() / KERNEL_FOLDER / name, kernel / name)
    shutil.copyfile(kernel / made_with.header, folder / made_with.header)


def build(folder: Path, compiler: list[str], kernel: Kernel = CLUSTER) -> None:
    """Compile the source in `folder`; UserError with the compiler's first complaint if that fails."""
    command = build_command(compiler, kernel)
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).splitlines()
        complaint = next(
            (line for line in lines if "error" in line.lower()), lines[0] if lines else "no output"
        )
        raise UserError(
            f"--to cpp: {compiler[0]} failed with status {done.returncode}: {complaint[:_MAX_SHOWN]}"
        )


def check_same(blob: bytes, library: Path) -> None:
    """UserError unless the library decides as the blob, bit for bit, for every actor over some steps."""
    rack = blob.startswith(rack_file.MAGIC)
    kind: Any = native.RackPolicy if rack else native.Policy
    try:
        compiled = kind(library)
    except ValueError as error:
        raise UserError(f"--to cpp: the compiled policy does not load: {error}") from error
    same = _same_draws if rack else _same_actions
    if not same(kind(blob), compiled):
        raise UserError(
            "--to cpp: the compiled policy differs from the blob; the compiler does not keep IEEE-754 single "
            "precision under these flags"
        )


def _same_actions(interpreted: Any, compiled: Any) -> bool:
    draw = np.random.default_rng(0)
    for _ in range(_CHECK_STEPS):
        for agent in range(interpreted.num_actors):
            obs = draw.exponential(2.0, interpreted.obs_size).astype(np.float32)
            expected, found = interpreted.infer(agent, obs), compiled.infer(agent, obs)
            if expected.tobytes() != found.tobytes():
                return False
    return True


def _same_draws(interpreted: Any, compiled: Any) -> bool:
    """Both play every server through the same tasks and messages."""
    n, draw = interpreted.num_servers, np.random.default_rng(0)
    for server in range(n):
        pair = [policy.player(server, 2) for policy in (interpreted, compiled)]
        for event in range(_CHECK_EVENTS):
            word, load_s = int(draw.integers(2**64, dtype=np.uint64)), float(draw.exponential(1e-4))
            answers = [_event(player, event, word, event % n, load_s) for player in pair]
            if answers[0] != answers[1]:
                return False
    return True


def _event(player: Any, event: int, word: int, sender: int, load_s: float) -> tuple[Any, ...]:
    told: tuple[Any, ...] = ()
    if event % 3 == 0:
        player.on_accept()
    elif event % 7 == 1:
        player.on_completion(0, load_s)
    player.on_load_message(sender, load_s)
    if event % 5 == 0:
        told = player.broadcast()
        player.on_window()
    return (*told, player.migrate(word), player.steal(word ^ (2**64 - 1)))
