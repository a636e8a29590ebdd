"""VPP with more threads than the machine has processors."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

_ANYWHERE = """
#include <pthread.h>
int pthread_setaffinity_np(pthread_t thread, size_t size, const cpu_set_t *set) { return 0; }
"""


def beside_each_other(folder: Path, workers: int) -> list[str]:
    """What starts VPP so that its threads share processors where there are not enough: it wants one for each.

    In a mount namespace of its own it sees as many as it needs, and the kernel chooses where threads run.
    What they reach together then says little of speed.
    """
    if workers < (os.cpu_count() or 1):
        return []
    source, library, online = folder / "anywhere.c", folder / "anywhere.so", folder / "online"
    source.write_text("#define _GNU_SOURCE\n" + _ANYWHERE)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    online.write_text(f"0-{workers}\n")
    script = 'mount --bind "$0" /sys/devices/system/cpu/online && exec "$@"'
    return ["unshare", "-m", "sh", "-c", script, str(online), "env", f"LD_PRELOAD={library}"]
