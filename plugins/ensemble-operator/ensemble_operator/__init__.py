"""A Kubernetes operator that runs ensembles on Flux MiniClusters from one custom resource.

The module ``main`` defines the command ``ensemble-operator``. The module ``watch`` observes the
cluster. The pure function ``plan`` computes the changes for an Ensemble, and ``loop`` carries them
out.
"""
