"""Flux MiniClusters in Kubernetes for Ensemble."""
