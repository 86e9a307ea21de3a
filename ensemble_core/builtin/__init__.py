"""The built-in triggers, actions, statistics and observers, as plugins."""
