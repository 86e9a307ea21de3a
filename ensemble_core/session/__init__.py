"""Starts, controls, resumes and opens runs, for the command line and the Python API.

These modules neither print nor read the command line; callers decide where warnings go.
"""
