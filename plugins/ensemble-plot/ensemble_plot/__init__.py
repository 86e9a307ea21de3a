"""The plugin for ``ensemble plot``: draws a run's values, its tables of results, its generators'
points or its timeline into a file.

Each kind of picture has a module. For a run's values, ``run_history``, ``curves``,
``rule_variables`` and ``picture`` convert the journal into plain data, and ``drawing`` draws these
data with matplotlib.
"""
