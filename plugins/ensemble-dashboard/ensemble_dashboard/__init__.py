"""Ensemble runs in a browser: ``ensemble report`` and ``ensemble dashboard``.

Both show the same page (``client/``) with the same data (``documents``): a report is one file, a
dashboard is a web server for its owner.
"""
