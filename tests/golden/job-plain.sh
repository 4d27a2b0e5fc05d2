#!/bin/bash
# steptime: steptime-001-abc
#SBATCH --job-name=steptime-001-abc
#SBATCH --output="/data/my runs/100%%/slurm/001-abc/logs/%A_%a.out"
#SBATCH --open-mode=append
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=1
#SBATCH --requeue
echo "steptime: begun $SLURM_JOB_ID"
echo "steptime: ready"
exec python3 -P -m steptime.sweeps.cluster.task '/data/my runs/100%/slurm/001-abc' "$(($1 + SLURM_ARRAY_TASK_ID))"
