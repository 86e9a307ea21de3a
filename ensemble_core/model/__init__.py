"""The data model: jobs, events, decisions, rules, conditions, and the ensemble of them. Pure."""
