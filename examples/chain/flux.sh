#!/bin/sh
# One study in a chain of Flux allocations: submit this script as often as the study may need.
#
#   for n in 1 2 3; do flux batch flux.sh; done
#
# "singleton" lets one of them run at a time. Each begins the run or goes on with it, in the Flux
# instance of its allocation, and stops in time: what runs then is cancelled, as it would end with
# the instance, and run again in the next.
# Expect in chain-*.out: exit code 5 where a run was stopped, exit code 0 where it ended; one that
# comes after that says so and ends at once, with the run's exit code.

#flux: --job-name=ensemble-chain
#flux: --dependency=singleton
#flux: --nslots=2
#flux: --time-limit=10m
#flux: --output=chain-{{id}}.out
# Should the time be over before --wall stops it: a minute earlier, as a warning.
#flux: --signal=SIGTERM@60s

exec ensemble run "${STUDY:-ensemble.yaml}" --tag chain --or-resume --state "$PWD/state" \
    --executor flux --wall "${WALL:-8m}"
