"""The built-in triggers, actions, statistics, observers, generators and algorithms, as plugins."""
