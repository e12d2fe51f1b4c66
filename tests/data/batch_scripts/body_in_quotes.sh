#!/bin/bash
#SBATCH --job-name=llm
#SBATCH --nodes=4
#SBATCH --gpus-per-node=8
#SBATCH --requeue --comment=understudy

srun bash -c '
  cd /work
  torchrun train.py
'
