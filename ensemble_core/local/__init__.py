"""Executor ``local``: runs jobs as processes of this machine. A plugin; nothing imports it."""
