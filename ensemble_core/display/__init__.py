"""Text about a run: lines for its events and decisions, the live table, and the summary.

The command line prints this text, and the Python API logs it.
"""
