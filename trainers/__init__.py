"""How they learn: algorithms, evaluation, comparison, logging, checkpoints and the command line."""
