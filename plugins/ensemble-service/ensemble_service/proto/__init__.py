"""Generated code of the protocol: the output of `make proto` for ``protos/``."""
