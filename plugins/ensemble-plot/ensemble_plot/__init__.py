"""Plot plugin: pictures of runs.

``run_history``, ``curves``, ``rule_variables`` and ``picture`` convert a journal into plain data;
``drawing`` draws these data into a file.
"""
