"""Runtime of a run: the inbox, the clock, the engine's thread and the threads around it."""
