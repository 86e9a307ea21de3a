"""The built-ins: triggers, actions, statistics, observers and the local executor, as plugins."""
