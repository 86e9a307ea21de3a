"""Simulation of ensemble files: the engine that steers real jobs, on a virtual clock.

``distributions`` and ``models`` say how long a job takes, how it fails and what it prints;
``nodes`` and ``virtual_queue`` are a cluster with a scheduler; ``executor`` plays jobs on them.
``forecast`` runs a file many times on ``virtual_runtime``, ``recorded_model`` makes a model of a
kept run, ``command`` is
``ensemble simulate`` (``simulated_run`` shows one run and keeps it).
"""
