"""Simulation of ensemble files: the real engine on a virtual clock, without real jobs.

``distributions`` and ``models`` define how long a job takes, how it fails and what it prints.
``nodes`` and ``virtual_queue`` are a cluster with a scheduler, and ``executor`` plays jobs on it.
``forecast`` runs a file many times on ``virtual_runtime``. ``recorded_model`` learns a model from a
kept run. ``command`` is ``ensemble simulate``, whose single run ``simulated_run`` shows and keeps.
"""
