#!/bin/bash
# One study in a chain of Grid Engine allocations: submit this script as often as needed.
#
#   for n in 1 2 3; do qsub gridengine.sh; done
#
# With "-hold_jid", each allocation waits for the earlier ones of its name, so one runs at a time. Each
# starts or resumes the run with its jobs on the allocated node, and stops it in time. Active jobs are
# cancelled then; the next allocation submits them again. If jobs share nodes, request as many slots
# as the run uses: qsub -pe NAME 2 gridengine.sh ('qconf -spl' lists the names).
# Expect in chain-*.out: exit code 5 if the run was stopped, exit code 0 if it has ended. An allocation
# after that reports it and exits at once with the run's exit code.

#$ -N ensemble-chain
#$ -hold_jid ensemble-chain
#$ -S /bin/bash
#$ -cwd
#$ -j y
#$ -o chain-$JOB_ID.out
#$ -l h_rt=600
# Before a kill by qdel or at the time limit, Grid Engine warns all processes of the job (SIGUSR2).
# The trap below passes that on to ensemble as SIGTERM.
#$ -notify
trap '' USR1 USR2
ensemble run "${STUDY:-ensemble.yaml}" --tag chain --or-resume --state "$PWD/state" \
    --executor local --slots "${SLOTS:-2}" --wall "${WALL:-8m}" &
trap 'kill -TERM $!' USR1 USR2
while wait $!; code=$?; kill -0 $! 2>/dev/null; do :; done
exit $code
