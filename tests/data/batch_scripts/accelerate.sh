#!/bin/bash
#SBATCH --job-name=llm
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --time=24:00:00
#SBATCH --requeue --comment=understudy

export LAUNCHER="accelerate launch \
    --num_processes 32 \
    --num_machines 4 \
    --machine_rank \$SLURM_PROCID"
srun bash -c "$LAUNCHER train.py"
