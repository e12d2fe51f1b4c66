#!/bin/bash
#SBATCH --job-name=llm
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --time=24:00:00
#SBATCH --requeue --comment=understudy

cat > conf.yaml <<EOF
exec srun: no
nodes: 4
EOF
srun python train.py --config conf.yaml && exit 0
sleep 60
exit 1
