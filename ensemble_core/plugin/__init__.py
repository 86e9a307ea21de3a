"""The plugin interface: hook specifications, records, their discovery and validation."""
