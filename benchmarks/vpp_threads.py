"""VPP with more threads than the machine has processors."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

_ANYWHERE = """
#include <pthread.h>
int pthread_setaffinity_np(pthread_t thread, size_t size, const cpu_set_t *set) { return 0; }
"""


def beside_each_other(folder: Path, workers: int) -> list[str]:
    """What starts VPP so that its threads share processors where there are not enough: it wants one for each.

    In a mount namespace of its own it sees as many as it needs, and the kernel chooses where threads run.
    """
    if workers < (os.cpu_count() or 1):
        return []
    source, library, online = folder / "anywhere.c", folder / "anywhere.so", folder / "online"
    source.write_text("#define _GNU_SOURCE\n" + _ANYWHERE)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    online.write_text(f"0-{workers}\n")
    script = 'mount --bind "$0" /sys/devices/system/cpu/online && exec "$@"'
    return ["unshare", "-m", "sh", "-c", script, str(online), "env", f"LD_PRELOAD={library}"]


def pin_workers(pid: int) -> None:
    """Give each worker of a VPP a processor of its own as far as they go; the main thread mostly sleeps."""
    processors = sorted(os.sched_getaffinity(0))
    for task in Path(f"/proc/{pid}/task").iterdir():
        if worker := re.fullmatch(r"vpp_wk_(\d+)", (task / "comm").read_text().strip()):
            os.sched_setaffinity(int(task.name), {processors[int(worker[1]) % len(processors)]})
