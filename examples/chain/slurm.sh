#!/bin/bash
# One study in a chain of Slurm allocations: submit this script as often as needed.
#
#   for n in 1 2 3; do sbatch slurm.sh; done
#
# With "singleton", one allocation runs at a time. Each starts or resumes the run with its jobs on the
# allocated node, and stops it in time. Active jobs are cancelled then; the next allocation submits
# them again.
# Expect in chain-*.out: exit code 5 if the run was stopped, exit code 0 if it has ended. An allocation
# after that reports it and exits at once with the run's exit code.

#SBATCH --job-name=ensemble-chain
#SBATCH --dependency=singleton
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=2
#SBATCH --time=10
#SBATCH --output=chain-%j.out
# A warning one minute before the time limit, in case --wall has not stopped the run by then.
#SBATCH --signal=B:TERM@60

exec ensemble run "${STUDY:-ensemble.yaml}" --tag chain --or-resume --state "$PWD/state" \
    --executor local --slots "${SLURM_CPUS_PER_TASK:-2}" --wall "${WALL:-8m}"
