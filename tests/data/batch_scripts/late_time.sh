#!/bin/bash
#SBATCH --job-name=llm --nodes=4 --time=10
#SBATCH --requeue --comment=understudy
set -e
#SBATCH --time=99
srun python train.py && exit 0
sleep 60
exit 1
