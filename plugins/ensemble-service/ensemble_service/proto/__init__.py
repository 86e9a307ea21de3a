"""Generated code of the wire: what `make proto` makes of ``protos/``, and nothing else."""
