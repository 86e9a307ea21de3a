"""Rule tests in YAML: given events, and the expected decisions of an ensemble's rules."""
