#!/bin/bash
#SBATCH --job-name=llm
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --time=24:00:00
#SBATCH --requeue --comment=understudy
#SBATCH --signal=B:USR1@300

handler() {
  echo 'time is up'
  scontrol requeue $SLURM_JOB_ID
}
trap handler USR1
srun python train.py &
wait
