"""Streaming metrics: the store of counts, statistics and gauges, and the series they reduce."""
