"""Ensemble runs in a browser: ``ensemble report`` and ``ensemble dashboard``.

Both show the same page (``client/``) with the same data (``documents``): a report has them in one
file, a dashboard serves them to its owner.
"""
