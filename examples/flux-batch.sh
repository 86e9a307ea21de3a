#!/bin/sh
# A batch script that runs an ensemble in its own allocation. When the allocation starts, `flux batch`
# starts a Flux instance in it and runs this script there; you need not stay logged in. The ensemble
# submits its jobs to the inner instance, so the outer one has only a single job.
#
#   flux batch flux-batch.sh                          hello-world.yaml of this folder
#   flux batch -N4 -n4 --exclusive flux-batch.sh F    any other file F, on four whole nodes
#   flux alloc -n2 ensemble run hello-world.yaml      the same from a terminal, without a script
#
# Expect one job "ensemble" in `flux jobs -a`, and the output of `ensemble run` in ensemble.out: a line
# with "executor flux" and the inner instance, then five sleeps and five echoes. The job ends like
# the run, with exit code 0.

#flux: --job-name=ensemble
#flux: --nslots=2
#flux: --time-limit=10m
#flux: --output=ensemble.out
# A signal one minute before the time limit: the run cancels its active jobs and prints a summary.
#flux: --signal=SIGTERM@60s

exec ensemble run "${1:-hello-world.yaml}"
