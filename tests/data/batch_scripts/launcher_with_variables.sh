#!/bin/bash
#SBATCH --job-name=llm
#SBATCH --nodes=5
#SBATCH --gpus-per-node=8
#SBATCH --requeue --no-kill --signal=B:USR1@120 --comment=understudy

NCCL_DEBUG=INFO understudy run --nodes 4 -- python train.py
