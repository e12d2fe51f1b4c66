#!/bin/bash
#SBATCH --job-name=llm
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --time=24:00:00
#SBATCH --requeue --comment=understudy

train() {
  srun python train.py "$@"
}

train --lr 1e-4
