"""Journal: a run's durable event log with snapshots, and the store of runs."""
