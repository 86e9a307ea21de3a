"""A Kubernetes operator for the custom resource ``Ensemble``.

An Ensemble describes members (Flux MiniClusters) and the ensemble files to run on them. The
operator creates the MiniClusters, the service that connects them, and the pods of the runs. The
module ``main`` defines the command ``ensemble-operator``, and ``watch`` observes the cluster. The
pure function ``plan`` computes the changes for an Ensemble, and ``loop`` carries them out.
"""
