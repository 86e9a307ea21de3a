"""Immutable data model of a run: jobs, events, decisions, rules, conditions and ensembles."""
