"""The journal (durable event log) of a run, with snapshots, and the store of all runs."""
