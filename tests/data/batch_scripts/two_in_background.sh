#!/bin/bash
#SBATCH --job-name=llm
#SBATCH --nodes=4
#SBATCH --gpus-per-node=8
#SBATCH --requeue --comment=understudy

srun --nodes=2 python a.py &
srun --nodes=2 python b.py &
wait
