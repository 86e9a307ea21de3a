#!/bin/sh
# A batch script: the ensemble gets an allocation of its own. `flux batch` starts a Flux instance in
# there and runs this script in it when it is its turn; nobody has to stay logged in. What the
# ensemble submits goes to the inner instance: the outer one has a single job, come what may.
#
#   flux batch flux-batch.sh                          hello-world.yaml of this folder
#   flux batch -N4 -n4 --exclusive flux-batch.sh F    any other file F, on four whole nodes
#   flux alloc -n2 ensemble run hello-world.yaml      the same from a terminal, without a script
#
# Expect one job "ensemble" in `flux jobs -a`, and what `ensemble run` prints in ensemble.out: five
# sleeps and five echoes, below a line that says "executor flux" and names the inner instance. The
# job ends as the run does: exit code 0.

#flux: --job-name=ensemble
#flux: --nslots=2
#flux: --time-limit=10m
#flux: --output=ensemble.out
# A minute before the time is over: the run cancels what is left, and says how far it came.
#flux: --signal=SIGTERM@60s

exec ensemble run "${1:-hello-world.yaml}"
