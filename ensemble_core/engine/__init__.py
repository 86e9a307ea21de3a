"""Engine: a pure state machine that turns events into decisions.

The docstring of the module ``engine`` states the laws that it obeys.
"""
