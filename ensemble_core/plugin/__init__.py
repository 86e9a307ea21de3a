"""Plugin interface: the hooks and records for plugin authors, and how plugins are found and
checked.
"""
