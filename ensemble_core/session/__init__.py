"""A run as both faces, the command line and the Python API, begin, control, resume and open it.

The modules here neither print nor read the command line: who calls them says where warnings go.
"""
