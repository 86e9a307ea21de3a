"""Contract suites and fakes for plugin authors."""
