#!/bin/bash
# One study in a chain of Slurm allocations: submit this script as often as the study may need.
#
#   for n in 1 2 3; do sbatch slurm.sh; done
#
# "singleton" lets one of them run at a time. Each begins the run or goes on with it, runs its jobs
# on the node that it has, and stops in time: what runs then is cancelled, and run again in the next.
# Expect in chain-*.out: exit code 5 where a run was stopped, exit code 0 where it ended; one that
# comes after that says so and ends at once, with the run's exit code.

#SBATCH --job-name=ensemble-chain
#SBATCH --dependency=singleton
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=2
#SBATCH --time=10
#SBATCH --output=chain-%j.out
# Should the time be over before --wall stops it: a minute earlier, as a warning.
#SBATCH --signal=B:TERM@60

exec ensemble run "${STUDY:-ensemble.yaml}" --tag chain --or-resume --state "$PWD/state" \
    --executor local --slots "${SLURM_CPUS_PER_TASK:-2}" --wall "${WALL:-8m}"
