"""Python API: a program runs, watches, steers and evaluates ensembles with it.

It provides ``ensemble_core.run``, ``load`` and ``open_run``. No other package of the core imports
this one.
"""
