"""Simulation of ensemble files: the real engine on a virtual clock, without real jobs."""
