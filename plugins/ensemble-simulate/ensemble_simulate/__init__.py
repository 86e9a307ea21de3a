"""Simulation of ensemble files: the real engine on a virtual clock, without real jobs.

``distributions`` and ``models`` define how long a job takes, how it fails and what it prints.
``nodes`` and ``virtual_queue`` are a cluster with a scheduler; ``executor`` simulates jobs on it.
``recorded_model`` learns a model from a kept run. ``command`` is ``ensemble simulate``:
``simulated_run`` shows and keeps a single run, and ``forecast`` simulates a file many times. Both
use ``virtual_runtime``.
"""
