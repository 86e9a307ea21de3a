"""The Python API, for programs that run, watch, steer and evaluate ensembles.

It provides ``ensemble_core.run``, ``load`` and ``open_run``. No other package of the core imports
this one.
"""
