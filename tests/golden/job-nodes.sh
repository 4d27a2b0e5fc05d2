#!/bin/bash
# steptime: steptime-001-abc
#SBATCH --job-name=steptime-001-abc
#SBATCH --output="/data/my runs/100%%/slurm/001-abc/logs/%A_%a.out"
#SBATCH --open-mode=append
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=2
#SBATCH --gres=gpu:p100:2
#SBATCH --no-requeue
#SBATCH --exclusive
echo "steptime: begun $SLURM_JOB_ID"
echo "steptime: ready"
exec srun --kill-on-bad-exit=1 python3 -P -m steptime.sweeps.cluster.task '/data/my runs/100%/slurm/001-abc' "$(($1 + SLURM_ARRAY_TASK_ID))"
