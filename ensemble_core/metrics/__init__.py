"""Metrics that are updated value by value: counts, statistics and gauges of a run."""
