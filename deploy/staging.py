"""A directory that appears whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from steelyard.envs.errors import UserError


def check_target(out: Path, *, force: bool, known: frozenset[str]) -> None:
    """UserError unless `out` can be written: absent or empty, or with `force` holding only `known` names."""
    if out.exists() and not out.is_dir():
        raise UserError(f"--out: {out} is a file; give the name of a directory")
    held = sorted(path.name for path in out.iterdir()) if out.is_dir() else []
    foreign = [name for name in held if name not in known]
    if held and not force:
        raise UserError(f"--out: {out} is not empty; name a new directory, or --force to replace an export")
    if foreign:
        raise UserError(f"--out: {out} holds {foreign[0]!r}, which no export writes; name another directory")
    parent = out.resolve().parent
    if not parent.is_dir():
        raise UserError(f"--out: {out}: directory {parent} does not exist; make it first")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise UserError(f"--out: directory {parent} is not writable")


@contextmanager
def staged(out: Path) -> Iterator[Path]:
    """A new directory beside `out` to write into; it becomes `out` when the block ends without an error.

    Whatever was at `out` is replaced then, and stays as it was after any error. OSError (a full disk, say)
    becomes UserError.
    """
    target = out.resolve()
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    old = target.with_name(f".{target.name}.{os.getpid()}.old")
    try:
        partial.mkdir()
        yield partial
        _sync(partial)
        _swap(partial, target, old)
    except OSError as error:
        raise UserError(f"--out: cannot write {out}: {error.strerror}; nothing was overwritten") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _sync(directory: Path) -> None:
    """Bring the files to the disk, where a delayed "no space left" shows."""
    for path in directory.rglob("*"):
        if path.is_file():
            with path.open("rb") as stream:
                os.fsync(stream.fileno())


def _swap(partial: Path, target: Path, old: Path) -> None:
    if not target.exists():
        partial.rename(target)
        return
    target.rename(old)
    try:
        partial.rename(target)
    except OSError:
        old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)
