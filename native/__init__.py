"""The native core, simulator and inference kernel, as one extension module."""

from pathlib import Path

from steelyard.native._native import *  # noqa: F403


def compile_flags() -> list[str]:
    """Compiler flags of the core; code that must agree with it to the bit is compiled with exactly these."""
    return (Path(__file__).parent / "build_flags.txt").read_text().split()


def include_dir() -> Path:
    """Folder under which `#include "native/core/..."` resolves."""
    return Path(__file__).resolve().parent.parent
