#!/bin/bash
#SBATCH --job-name=llm
#SBATCH --nodes=4
#SBATCH --gpus-per-node=8
#SBATCH --requeue --job-name=bert --comment=bert

srun python train.py && exit 0
sleep 60
exit 1
