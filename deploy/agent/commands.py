"""The `steelyard agent` command."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro


@dataclass(kw_only=True)
class Agent:
    """Run a policy for a dataplane, over shared memory.

    Every period it takes what the dataplane has measured, decides, and writes weights back. It waits for a
    dataplane that is not there (yet, or any more), goes on when there is one again, and tells it to go on alone
    when it is stopped (SIGTERM, SIGINT). One line of metrics every report. Example:
    steelyard agent --pool /dev/shm/steelyard/web --policy runs/first
    """

    pool: Annotated[tuple[str, ...], tyro.conf.arg(metavar="FILE"), tyro.conf.UseAppendAction] = ()
    """Shared-memory file of a dataplane; repeat for more balancers, in the order of the policy's actors."""
    policy: Annotated[str, tyro.conf.arg(metavar="RUN_DIR|BLOB|SO")]
    """A run directory of `steelyard train`, or an exported policy (blob or .so)."""
    period: float = 0.25
    """Seconds from one decision to the next."""
    index: int = 0
    """Number of the first pool's balancer among those that the policy was trained for."""
    report: float = 10.0
    """Seconds from one line of metrics to the next."""
    duration: float | None = None
    """Stop after so many seconds; by default run until told to stop."""

    def run(self) -> int:
        """Check, then serve until stopped."""
        from steelyard.deploy.agent import service

        return service.serve(
            service.Options(
                pools=self.pool,
                policy=self.policy,
                period_s=self.period,
                index=self.index,
                report_s=self.report,
                duration_s=self.duration,
            )
        )
