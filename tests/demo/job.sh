#!/bin/bash
# The gang's batch script, as a researcher would write it. What Understudy asks for: --requeue, and its word in
# the comment. What is special to a testbed: all nodes are on one machine, so each rank is pointed at its node's GPUs and keeper.
#SBATCH --job-name=gang
#SBATCH --comment=understudy
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:8

export MASTER_ADDR=$(hostname --ip-address)
export MASTER_PORT=$((20000 + (SLURM_JOB_ID * 16 + ${SLURM_RESTART_COUNT:-0}) % 10000))
export OMP_NUM_THREADS=1

echo "attempt ${SLURM_RESTART_COUNT:-0} on $SLURM_JOB_NODELIST"
srun --kill-on-bad-exit=1 bash -c '
  export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS
  export UNDERSTUDY_KEEPER_SOCKET=$TESTBED/keepers/%n.sock
  export FAKE_NVML_STATE=$TESTBED/nodes/$SLURMD_NODENAME/gpus LD_LIBRARY_PATH=$TESTBED/lib
  exec "$@"' rank "$@" && exit 0

# A batch script that ends gives its seats away at once. If a node is to blame, the control plane requeues this job
# within seconds; if the program itself failed, it does not, and the job ends here.
echo "the gang has failed; waiting for a verdict"
sleep 60
exit 1
