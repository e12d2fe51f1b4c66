#!/bin/bash
#SBATCH --job-name=llm
#SBATCH --nodes=5
#SBATCH --gpus-per-node=8
#SBATCH --time=24:00:00
#SBATCH --requeue --comment=understudy
#SBATCH --no-kill --signal=B:USR1@120
exec understudy run --nodes 4 -- python train.py
