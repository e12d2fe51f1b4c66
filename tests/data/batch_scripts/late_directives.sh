#!/bin/bash
set -e
#SBATCH --nodes=4
#SBATCH --requeue --comment=understudy
srun python train.py && exit 0
sleep 60
exit 1
