"""What the record of an episode of the load-balancing game holds, simulated or on a testbed."""

RECORD_KEYS = (
    "scenario",
    "policy",
    "seed",
    "flows",
    "rejected",
    "sojourn_mean_s",
    "sojourn_p50_s",
    "sojourn_p90_s",
    "sojourn_p99_s",
    "waiting_mean_s",
    "jain_mean",
    "events",
    "cpu_s",
)
"""Keys of one JSON record, in this order."""
