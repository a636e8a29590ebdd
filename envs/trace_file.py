"""Writing trace files (format in envs/traces/README.md); `native.load_trace` reads them.

Every file is written beside its target, read back through the one native reader, and only then renamed,
so a target is never half a trace.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from steelyard.envs.errors import UserError, bad_value

VERSION_LINE = "# steelyard-trace-v1"
HEADER_LINE = "arrival_us,class,service_us,bytes"

_NOT_IN_CLASS_NAME = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(frozen=True)
class TraceRows:
    """Columns of a trace of n requests, each of length n, in the order of arrival."""

    arrival_us: Sequence[int]
    """Time of arrival [us], from 0, never decreasing."""
    class_name: Sequence[str]
    service_us: Sequence[int]
    """Work of one worker on the request, without waiting [us], at least 1."""
    bytes: Sequence[int]


def class_name(text: str) -> str:
    """The text as a class name: what is not A-Z a-z 0-9 . _ - becomes '_'; at most 64 characters."""
    return _NOT_IN_CLASS_NAME.sub("_", text.strip())[:64]


def check_target(path: Path, force: bool) -> None:
    """Refuse a file that exists (unless force) or a folder that does not, before any work is done."""
    if path.is_dir():
        raise bad_value("out", str(path), "a file, not a folder")
    if path.exists() and not force:
        raise bad_value("out", str(path), "a file that does not exist yet; --force replaces it")
    if not path.parent.is_dir():
        raise bad_value("out", str(path), f"in a folder that exists; there is no {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise bad_value("out", str(path), "in a folder that you may write to")


def trace_text(rows: TraceRows, comments: Sequence[str] = ()) -> str:
    """The text of a trace file; each comment becomes one '# ' line after the version."""
    lines = [VERSION_LINE, *("# " + " ".join(comment.split()) for comment in comments), HEADER_LINE]
    columns = zip(rows.arrival_us, rows.class_name, rows.service_us, rows.bytes, strict=True)
    lines += [f"{arrival},{name},{service},{size}" for arrival, name, service, size in columns]
    return "\n".join(lines) + "\n"


def write_trace(path: Path, rows: TraceRows, comments: Sequence[str] = (), force: bool = False) -> None:
    """Write a trace file at path. UserError if path is taken (unless force) or rows break the format."""
    from steelyard import native

    check_target(path, force)
    replace_file(path, trace_text(rows, comments), lambda partial: native.load_trace(str(partial)))


def replace_file(path: Path, text: str, check: Callable[[Path], object] = bool) -> None:
    """Write text beside path, check it there (ValueError if bad), rename it to path; else UserError."""
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_text(text, encoding="ascii")
        check(partial)
        partial.replace(path)
    except ValueError as error:
        raise UserError(f"{path} not written: {error}") from error
    except OSError as error:
        raise UserError(f"{path} not written: {error.strerror}") from error
    finally:
        partial.unlink(missing_ok=True)
