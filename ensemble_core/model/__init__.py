"""Data model: jobs, events, decisions, rules, conditions, ensembles. Pure."""
