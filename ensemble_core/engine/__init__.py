"""Engine: a pure state machine that turns events into decisions.

Its laws are at the top of ``engine.py``.
"""
