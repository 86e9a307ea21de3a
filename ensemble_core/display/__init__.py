"""A run in text: lines for its events and decisions, the live table, the summary, table columns.

Both faces use it: the command line prints the text, the Python API logs it.
"""
