"""A testbed for tests: under a name of this process, so that test runs beside each other do not meet."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from steelyard.deploy.testbed import site

PREFIX = "slt"
NAME = f"{PREFIX}{os.getpid()}"


def require_root() -> None:
    """Fails, rather than skips: without these tests nobody knows whether real packets arrive."""
    assert os.geteuid() == 0, "tests of the testbed need root, which makes network namespaces and cgroups"


@contextmanager
def cleaned() -> Iterator[str]:
    """The name; nothing is left under it afterwards, nor of test runs that were killed."""
    require_root()
    _remove_orphans()
    try:
        yield NAME
    finally:
        site.take_down(NAME)
        (site.HOME / f"{NAME}.lock").unlink(missing_ok=True)


def _remove_orphans() -> None:
    namespaces = Path("/run/netns")
    names = {path.name.partition("-")[0] for path in namespaces.iterdir()} if namespaces.is_dir() else set()
    for name in names:
        match = re.fullmatch(PREFIX + "([0-9]+)", name)
        if match and not Path(f"/proc/{match[1]}").exists():
            site.take_down(name)
