#!/bin/bash
# steptime: steptime-001-abc
#SBATCH --job-name=steptime-001-abc
#SBATCH --output="/data/my runs/100%%/slurm/001-abc/logs/%A_%a.out"
#SBATCH --open-mode=append
#SBATCH --partition=GPU
#SBATCH --account=me
#SBATCH --qos=long
#SBATCH --constraint=haswell&ib
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=28
#SBATCH --gres=gpu:k80:4
#SBATCH --mem=57220M
#SBATCH --time=2:00:00
#SBATCH --requeue
#SBATCH --reservation=maintenance
#SBATCH --mail-type=END
echo "steptime: begun $SLURM_JOB_ID"
module load cuda/12 || { echo 'steptime: cannot load module cuda/12' >&2; exit 1; }
module load 'python 3' || { echo 'steptime: cannot load module python 3' >&2; exit 1; }
{ source $HOME/env/bin/activate
} || { echo 'steptime: a line of run_first failed: source $HOME/env/bin/activate' >&2; exit 1; }
{ ulimit -c 0
} || { echo 'steptime: a line of run_first failed: ulimit -c 0' >&2; exit 1; }
echo "steptime: ready"
exec python3 -P -m steptime.sweeps.cluster.task '/data/my runs/100%/slurm/001-abc' "$(($1 + SLURM_ARRAY_TASK_ID))"
