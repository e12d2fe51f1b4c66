#!/bin/bash
#SBATCH --job-name=llm
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --time=24:00:00
#SBATCH --requeue --comment=understudy

source /opt/conda/etc/profile.d/conda.sh
conda activate llm
srun --label conda run -n llm python train.py
