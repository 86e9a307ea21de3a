"""Engine: a pure state machine that turns events into decisions.

The docstring of ``engine.py`` states its laws.
"""
