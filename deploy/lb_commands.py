"""The command `steelyard lb`: what one asks of a running `steelyard-lb`, and of its configuration file."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from steelyard.envs.errors import UserError

File = Annotated[Path, tyro.conf.arg(metavar="FILE")]
ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = "STEELYARD_LB"
TIMEOUT_S = 30.0


@dataclass
class Lb:
    """Check the configuration of the L4 load balancer, or ask a running one (docs/dataplane.md).

    check reads the file as `steelyard-lb --check` does; stats prints the counters of the balancer that runs
    with the file, as JSON; reload makes it read the file again, without losing a flow.
    """

    action: Annotated[Literal["check", "stats", "reload"], tyro.conf.Positional]
    """What to do."""
    config: tyro.conf.Positional[File]
    """The balancer's configuration file."""

    def run(self) -> int:
        """Do it; the exit status."""
        if self.action == "check":
            return subprocess.run([find_binary(), "--config", self.config, "--check"], check=False).returncode
        answer = ask(control_socket(self.config), self.action)
        if "error" in answer:
            raise UserError(f"{self.config}: {answer['error']}")
        print(json.dumps(answer, indent=2))
        return 0


def find_binary() -> Path:
    """steelyard-lb: what $STEELYARD_LB names, else on the path, else the newest build of this checkout.

    Raises UserError when there is none.
    """
    if named := os.environ.get(ENVIRONMENT) or shutil.which("steelyard-lb"):
        return Path(named)
    built = list(ROOT.glob("build/cmake-*/native/dataplane/steelyard-lb"))
    if not built:
        raise UserError(f"steelyard-lb: not found; `make dataplane` builds it, or {ENVIRONMENT} names it")
    return max(built, key=lambda path: path.stat().st_mtime)


def control_socket(config: Path) -> Path:
    """The control socket that a configuration file names. Raises UserError when it names none."""
    try:
        named = tomllib.loads(config.read_text()).get("control_socket")
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"{config}: {error}") from None
    if not isinstance(named, str) or not named:
        raise UserError(f"{config}: control_socket: missing, so that nothing can be asked of the balancer")
    return config.parent / named


def ask(path: Path, command: str) -> dict[str, Any]:
    """Send a command to a running balancer; its answer, which has `error` when it was refused.

    Raises UserError when none listens at `path`.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(TIMEOUT_S)
        try:
            connection.connect(str(path))
            connection.sendall(command.encode() + b"\n")
            with connection.makefile("rb") as reader:
                return json.loads(reader.read())
        except OSError as error:
            raise UserError(f"{path}: no balancer answers: {error}") from None
