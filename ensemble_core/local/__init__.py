"""Executor ``local``, which runs jobs as processes on this machine.

It is a plugin, so no other package of the core imports it.
"""
