"""Data model without side effects: jobs, events, decisions, rules, conditions, ensembles."""
