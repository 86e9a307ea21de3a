"""Text about a run: lines for its events and decisions, the live table, and the summary."""
