"""Ray RLlib as the distributed engine: `steelyard train --engine rllib`, and sweeps on Ray Tune."""
