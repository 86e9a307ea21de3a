"""A Kubernetes operator that runs ensembles on Flux MiniClusters from one custom resource.

``main`` has the command ``ensemble-operator``. The pure function ``plan`` decides what happens with
an Ensemble; ``watch`` observes the cluster, and ``loop`` carries out the plan.
"""
