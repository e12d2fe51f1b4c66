#!/bin/bash
#SBATCH --job-name=llm
#SBATCH --nodes=4
#SBATCH --gpus-per-node=8
#SBATCH --requeue --comment=understudy

x=$((1<<4)); y=$((x<<y))
srun python train.py
