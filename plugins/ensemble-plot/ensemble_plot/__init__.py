"""The plugin for plots of runs: ``run_history``, ``curves``, ``rule_variables`` and ``picture``
turn a journal into plain data, ``drawing`` turns these into a file.
"""
