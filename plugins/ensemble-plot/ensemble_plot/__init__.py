"""Plot plugin: pictures of runs.

``run_history``, ``curves``, ``rule_variables`` and ``picture`` turn a journal into plain data;
``drawing`` turns that into a file.
"""
