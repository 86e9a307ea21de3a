"""Ensemble runs in a browser: ``ensemble report`` and ``ensemble dashboard``.

Both show the page in ``client/``. A report is one file; a dashboard is a web server.
"""
