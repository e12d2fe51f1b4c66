#!/bin/bash
#SBATCH --job-name=llm
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --time=24:00:00
#SBATCH --requeue --comment=understudy
#SBATCH --array=1-8%2
#SBATCH --output=logs/%A_%a.out

srun python train.py --seed $SLURM_ARRAY_TASK_ID && exit 0
sleep 60
exit 1
