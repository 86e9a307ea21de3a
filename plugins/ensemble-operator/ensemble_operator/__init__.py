"""Kubernetes operator for the custom resource ``Ensemble``.

An Ensemble describes Flux MiniClusters, and the ensemble files to run on them.
"""
