#!/bin/bash
#SBATCH --job-name=llm
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --time=24:00:00
#SBATCH --requeue --comment=understudy

srun --container-image=nvcr.io#nvidia/pytorch:24.10-py3 --container-mounts=/data:/data python train.py
