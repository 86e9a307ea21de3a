"""The ensemble service: members and runs meet here. Loads gRPC; nothing else in the core does."""
