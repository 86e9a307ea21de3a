"""The ensemble service: where members (queues) and runs meet. The only package that loads gRPC."""
