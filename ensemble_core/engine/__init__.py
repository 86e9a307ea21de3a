"""The engine: a pure state machine. Events in, decisions out; ``engine.py`` opens with its laws."""
