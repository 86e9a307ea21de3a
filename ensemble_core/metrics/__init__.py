"""Streaming metrics: the store of counts, statistics and gauges."""
