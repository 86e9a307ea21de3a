"""The journal: a run's durable event log and snapshots, and the store of runs that it lies in."""
