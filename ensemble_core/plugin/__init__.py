"""Plugin interface: the hooks and records for plugin authors; finding and checking plugins."""
