"""A Kubernetes operator that runs ensembles on Flux MiniClusters from one custom resource.

``main`` has the command ``ensemble-operator``. ``watch`` observes the cluster. The pure function
``plan`` computes the changes for an Ensemble, and ``loop`` carries them out.
"""
