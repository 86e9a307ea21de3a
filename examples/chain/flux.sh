#!/bin/sh
# One study in a chain of Flux allocations: submit this script as often as needed.
#
#   for n in 1 2 3; do flux batch flux.sh; done
#
# With "singleton", one allocation runs at a time. Each starts or resumes the run in its Flux instance
# and stops it in time. Active jobs are cancelled then, because they would end with the instance; the
# next allocation submits them again.
# Expect in chain-*.out: exit code 5 if the run was stopped, exit code 0 if it has ended. An allocation
# after that reports it and exits at once with the run's exit code.

#flux: --job-name=ensemble-chain
#flux: --dependency=singleton
#flux: --nslots=2
#flux: --time-limit=10m
#flux: --output=chain-{{id}}.out
# A warning one minute before the time limit, in case --wall has not stopped the run by then.
#flux: --signal=SIGTERM@60s

exec ensemble run "${STUDY:-ensemble.yaml}" --tag chain --or-resume --state "$PWD/state" \
    --executor flux --wall "${WALL:-8m}"
