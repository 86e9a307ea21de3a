"""Sessions: start, control, resume and open runs, for the command line and the Python API.

These modules neither print nor read the command line. Callers decide where warnings go.
"""
