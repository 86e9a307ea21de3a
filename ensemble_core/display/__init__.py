"""Text about a run: lines for its events and decisions, the live table, the summary.

The command line prints the text, the Python API logs it.
"""
