"""A Kubernetes operator: runs ensembles over Flux MiniClusters from one custom resource.

``ensemble-operator`` (``main``) is its command. What becomes of an Ensemble is decided by one pure
function, ``plan``; ``loop`` carries that out, and ``watch`` tells it what there is.
"""
