"""What leaves the laboratory: the policy compiler and the trace recorder."""
