#!/bin/bash
#SBATCH --job-name=llm
#SBATCH --nodes=4
#SBATCH --gpus-per-node=8
#SBATCH --requeue --comment=understudy

cat > conf <<'END-OF'
srun x
END-OF
srun python train.py
