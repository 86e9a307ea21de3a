"""Plots of runs: a journal becomes plain data (``run_history``, ``curves``, ``rule_variables``,
``picture``), and that a file (``drawing``)."""
