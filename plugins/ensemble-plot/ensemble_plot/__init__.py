"""Plots of runs: a journal becomes plain data (``story``, ``curves``, ``choice``), and that a file
(``drawing``, the only module that knows matplotlib)."""
