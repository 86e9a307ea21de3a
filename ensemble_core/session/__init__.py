"""Sessions: start, control, resume and open runs, for the command line and the Python API.

These modules print nothing and do not parse the command line.
"""
