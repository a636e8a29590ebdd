"""The native core, simulator and inference kernel, as one extension module."""

import platform
from pathlib import Path

from steelyard.native._native import *  # noqa: F403


def compile_flags() -> list[str]:
    """Compiler flags of the core; code that must agree with it to the bit is compiled with exactly these."""
    flags = (Path(__file__).parent / "compile_flags.txt").read_text().split()
    if platform.machine() in ("x86_64", "AMD64"):
        flags.append("-march=x86-64-v3")
    return flags


def include_dir() -> Path:
    """Folder under which `#include "native/core/..."` resolves."""
    return Path(__file__).resolve().parent.parent
