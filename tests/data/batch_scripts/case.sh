#!/bin/bash
#SBATCH --job-name=llm
#SBATCH --nodes=4
#SBATCH --gpus-per-node=8
#SBATCH --requeue --comment=understudy

case train in
  train) srun python train.py ;;
  *) exit 2 ;;
esac
