"""The policy compiler: a policy file becomes C++ source, and that a shared object with a C face.

The kernel of native/core is copied beside the source, so that the folder builds on a machine without this
project. Compiled by the core's flags it gives the bits of the blob; `check_same` holds every export to that.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

import numpy as np

from steelyard import native
from steelyard.deploy import cpp_source
from steelyard.deploy.policy_file import PolicyFile
from steelyard.envs.errors import UserError

SOURCE, LIBRARY, HEADER = "policy.cpp", "policy.so", "policy_c.h"
KERNEL_FOLDER = Path("native", "core")
KERNEL = ("policy.h", "policy.cc", "policy_c.h", "policy_face.h", "activations.h", "lanes.h", "schema.h")
_LINK_FLAGS = ("-shared", "-Wl,--as-needed", "-Wl,-z,defs")
_CHECK_STEPS = 32
_MAX_SHOWN = 200


def find_compiler() -> list[str]:
    """The C++ compiler, $CXX or g++, as the start of a command; UserError if it is not installed."""
    command = shlex.split(os.environ.get("CXX") or "g++")
    if not command or shutil.which(command[0]) is None:
        name = command[0] if command else ""
        raise UserError(
            f"--to cpp: no C++ compiler {name!r} found; install g++ or name one in CXX, or use --to blob"
        )
    return command


def build_command(compiler: list[str]) -> list[str]:
    """The command that builds the library, to be run in the export's folder."""
    sources = [SOURCE, str(KERNEL_FOLDER / "policy.cc")]
    return [*compiler, *native.compile_flags(), *_LINK_FLAGS, "-I.", *sources, "-o", LIBRARY]


def write_source(policy: PolicyFile, folder: Path) -> None:
    """Write policy.cpp, the kernel that it needs and the C header into `folder`."""
    heading = [
        f"A load-balancing policy, written by steelyard {metadata.version('steelyard')}; not to be edited.",
        f"From a policy file with SHA-256 {policy.sha256}.",
        "Its C face is policy_c.h. To build it:",
        f"  {shlex.join(build_command(['g++']))}",
    ]
    (folder / SOURCE).write_text(cpp_source.generate(native.pack_policy(policy.blob), heading), "utf-8")
    kernel = folder / KERNEL_FOLDER
    kernel.mkdir(parents=True)
    for name in KERNEL:
        shutil.copyfile(native.include_dir() / KERNEL_FOLDER / name, kernel / name)
    shutil.copyfile(kernel / HEADER, folder / HEADER)


def build(folder: Path, compiler: list[str]) -> None:
    """Compile the source in `folder`; UserError with the compiler's first complaint if that fails."""
    done = subprocess.run(build_command(compiler), cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).splitlines()
        complaint = next(
            (line for line in lines if "error" in line.lower()), lines[0] if lines else "no output"
        )
        raise UserError(
            f"--to cpp: {compiler[0]} failed with status {done.returncode}: {complaint[:_MAX_SHOWN]}"
        )


def check_same(blob: bytes, library: Path) -> None:
    """UserError unless the library gives the blob's actions, bit for bit, for every actor over some steps."""
    interpreted = native.Policy(blob)
    try:
        compiled = native.Policy(library)
    except ValueError as error:
        raise UserError(f"--to cpp: the compiled policy does not load: {error}") from error
    draw = np.random.default_rng(0)
    for step in range(_CHECK_STEPS):
        for agent in range(interpreted.num_actors):
            obs = draw.exponential(2.0, interpreted.obs_size).astype(np.float32)
            expected, found = interpreted.infer(agent, obs), compiled.infer(agent, obs)
            if expected.tobytes() != found.tobytes():
                raise UserError(
                    f"--to cpp: the compiled policy differs from the blob at step {step}; the compiler does "
                    "not keep IEEE-754 single precision under these flags"
                )
