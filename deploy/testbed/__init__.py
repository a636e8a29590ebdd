"""Real servers and clients on one machine: the recorder of request traces."""
