#!/bin/bash
# One study in a chain of Grid Engine allocations: submit this script as often as the study may need.
#
#   for n in 1 2 3; do qsub gridengine.sh; done
#
# "-hold_jid" lets one of them run at a time: each waits for those of its name that came before. Each
# begins the run or goes on with it, runs its jobs on the node that it has, and stops in time: what
# runs then is cancelled, and run again in the next. Where jobs share nodes, ask for as many slots as
# it is to use: qsub -pe NAME 2 gridengine.sh ('qconf -spl' has the names).
# Expect in chain-*.out: exit code 5 where a run was stopped, exit code 0 where it ended; one that
# comes after that says so and ends at once, with the run's exit code.

#$ -N ensemble-chain
#$ -hold_jid ensemble-chain
#$ -S /bin/bash
#$ -cwd
#$ -j y
#$ -o chain-$JOB_ID.out
#$ -l h_rt=600
# Before a qdel, or the end of the time, kills it: a warning (SIGUSR2), which goes to all processes of
# the job, and which ensemble is told of by SIGTERM.
#$ -notify
trap '' USR1 USR2
ensemble run "${STUDY:-ensemble.yaml}" --tag chain --or-resume --state "$PWD/state" \
    --executor local --slots "${SLOTS:-2}" --wall "${WALL:-8m}" &
trap 'kill -TERM $!' USR1 USR2
while wait $!; code=$?; kill -0 $! 2>/dev/null; do :; done
exit $code
