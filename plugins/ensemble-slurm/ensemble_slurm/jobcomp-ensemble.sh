#!/bin/sh
# For administrators: tells runs of Ensemble that a job of theirs has ended. In slurm.conf:
#     JobCompType=jobcomp/script
#     JobCompLoc=/etc/slurm/jobcomp-ensemble.sh
# FOLDER must be seen by slurmctld and by the machines where users run 'ensemble run'; it belongs to
# SlurmUser, others may read it (mkdir -m 755). Users then say: ensemble run -o jobcomp=FOLDER
# A line is a hint to look at the queue and carries nothing that is believed.
FOLDER=${ENSEMBLE_JOBCOMP:-/var/spool/slurm/ensemble}
case $JOBNAME in
*@[0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f]) ;;
*) exit 0 ;;
esac
umask 022
echo "$JOBID $JOBSTATE" >>"$FOLDER/$UID.${JOBNAME##*@}"
