"""The runtime: the inbox, the clock, and the threads around the one that owns the engine."""
