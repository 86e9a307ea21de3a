"""The commands ``ensemble server`` (also ``ensemble-server``) and ``ensemble member``."""
