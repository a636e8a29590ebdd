"""Where a training run writes its curves: CSV files always, W&B if asked for, a live line on the terminal."""

from __future__ import annotations

import csv
import io
import netrc
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal
from urllib.parse import urlsplit

import numpy as np

from steelyard.envs.errors import UserError

WandbMode = Literal["disabled", "offline", "online"]
_HISTOGRAM_BINS = 64
_WANDB_HOST = "api.wandb.ai"  # keys are stored under this name whatever W&B's present address is


def check_wandb(mode: WandbMode) -> None:
    """UserError if W&B shall be online and nobody is logged in; ModuleNotFoundError if it is not there."""
    if mode == "disabled":
        return
    import wandb  # noqa: F401

    if mode == "online" and not _logged_in():
        raise UserError(
            "--wandb online: no W&B key; set WANDB_API_KEY, run `wandb login`, or use --wandb offline"
        )


def _logged_in() -> bool:
    """Whether W&B finds a key without asking: environment, netrc or its own settings."""
    from wandb.sdk import wandb_setup

    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    settings = wandb_setup.singleton().settings
    if settings.api_key:
        return True
    hosts = (urlsplit(settings.base_url).netloc, _WANDB_HOST)
    try:
        stored = netrc.netrc(os.environ.get("NETRC") or str(Path("~/.netrc").expanduser()))
        return any(stored.authenticators(host) is not None for host in hosts)
    except (OSError, netrc.NetrcParseError):
        return False


class CsvLog:
    """An append-only CSV whose rows are keyed by the column `episode`; the first row decides the columns."""

    def __init__(self, path: Path, last_episode: int) -> None:
        """Go on after `last_episode`: rows of later episodes, left by a run that was cut off, are dropped."""
        self.path, self.columns = path, None
        if not path.exists():
            return
        with open(path, newline="", encoding="utf-8") as stream:
            rows = list(csv.reader(stream))
        if not rows:
            return
        self.columns = rows[0]
        at = self.columns.index("episode") if "episode" in self.columns else None
        try:
            kept = [row for row in rows[1:] if len(row) == len(rows[0]) and int(row[at]) <= last_episode]  # type: ignore[index]
        except (TypeError, ValueError) as error:
            raise UserError(f"{path}: not a log of a training run") from error
        if kept != rows[1:]:
            partial = path.with_name(f".{path.name}.partial")
            partial.write_text(_lines([self.columns, *kept]), "utf-8")
            os.replace(partial, path)

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one row. Floats are written so that they read back the same."""
        lines = []
        if self.columns is None:
            self.columns = list(row)
            lines.append(self.columns)
        if list(row) != self.columns:
            raise ValueError(f"{self.path}: columns {list(row)} are not {self.columns}")
        lines.append(
            [
                "" if value is None else repr(value) if isinstance(value, float) else str(value)
                for value in row.values()
            ]
        )
        with open(self.path, "a", newline="", encoding="utf-8") as stream:
            stream.write(_lines(lines))


def _lines(rows: list[list[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


class WandbLog:
    """The run at Weights & Biases; every method does nothing when the mode is `disabled`.

    `offline` needs no account and no network: it leaves wandb/offline-run-*/run-*.wandb in the run directory.
    """

    def __init__(self, mode: WandbMode, directory: Path, config: Mapping[str, Any], name: str) -> None:
        self._run = None
        if mode == "disabled":
            return
        import wandb

        self._wandb = wandb
        settings = wandb.Settings(silent=True, console="off")
        self._run = wandb.init(
            project="steelyard", name=name, dir=directory, config=dict(config), mode=mode, settings=settings
        )

    def log(self, row: Mapping[str, Any]) -> None:
        """Curves: every number of the row, at its `episode`."""
        if self._run is not None:
            self._run.log({k: v for k, v in row.items() if v is not None}, step=int(row["episode"]))

    def evaluation(self, episode: int, sojourn_s: np.ndarray, t_s: np.ndarray, weights: np.ndarray) -> None:
        """Histogram of sojourn times (flows,) and weights over time, t_s (T,), weights (T, M, N)."""
        if self._run is None:
            return
        counts, edges = np.histogram(sojourn_s, bins=_HISTOGRAM_BINS)
        columns: list[str | int] = [
            "t_s",
            *(f"lb{i}_server{j}" for i in range(weights.shape[1]) for j in range(weights.shape[2])),
        ]
        rows = np.column_stack([t_s, weights.reshape(len(t_s), -1)]).tolist()
        self._run.log(
            {
                "eval/sojourn_s": self._wandb.Histogram(np_histogram=(counts, edges)),
                "eval/weights": self._wandb.Table(columns=columns, data=rows),
            },
            step=episode,
        )

    def finish(self, policy: Path, summary: Mapping[str, Any]) -> None:
        """The policy as an artifact, the summary, and the end of the run."""
        if self._run is None:
            return
        self._run.summary.update(dict(summary))
        if policy.is_file():
            artifact = self._wandb.Artifact("policy", type="policy")
            artifact.add_file(str(policy))
            self._run.log_artifact(artifact)
        self._run.finish()
        self._wandb.teardown()  # waits until its service has written the file


class LiveLine:
    """Progress on stderr: a bar on a terminal, otherwise a line per evaluation; nothing when quiet."""

    def __init__(self, title: str, total: int, done: int, quiet: bool) -> None:
        self._quiet, self._bar = quiet, None
        if quiet or not sys.stderr.isatty():
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, TextColumn("{task.fields[text]}"), console=Console(stderr=True))
        self._task = self._bar.add_task(title, total=total, completed=done, text="")

    def __enter__(self) -> LiveLine:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, done: int, text: str, evaluated: bool) -> None:
        """`done` episodes so far; `text` is shown beside the bar, or as a line if there was an evaluation."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done, text=text)
        elif evaluated and not self._quiet:
            print(f"episode {done}: {text}", file=sys.stderr, flush=True)
