"""Engine: a pure state machine from events to decisions. Its laws are at the top of
``engine.py``."""
