"""The Python API, with which a program runs, watches, steers and evaluates an ensemble.

It provides ``ensemble_core.run``, ``load`` and ``open_run``. No other package of the core imports
this one.
"""
