"""The control agent: runs a policy over shared memory, beside a dataplane that does not host it."""
