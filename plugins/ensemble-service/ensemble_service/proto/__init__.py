"""What `make proto` generates from ``protos/``: the wire, and nothing else."""
