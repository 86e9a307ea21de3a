"""The Python API: an ensemble begun, watched, steered and evaluated by a Python program.

``ensemble_core.run``, ``load`` and ``open_run`` come from here; nothing else of the core imports
this room.
"""
