#!/bin/bash
# The batch script of a gang that keeps its state: a spare in its own allocation, and ranks that go on in their processes.
#SBATCH --job-name=live
#SBATCH --comment=understudy
#SBATCH --requeue
#SBATCH --no-kill
#SBATCH --gres=gpu:8

export OMP_NUM_THREADS=1
exec "$1" -P -m understudy_launcher --nodes 3 --procs-per-node 1 --in-process --preload torch -- "$@"
