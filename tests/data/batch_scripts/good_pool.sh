#!/bin/bash
#SBATCH --job-name=llm
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --time=24:00:00
#SBATCH --requeue --comment=understudy

srun --kill-on-bad-exit=1 python train.py && exit 0
sleep 60
exit 1
