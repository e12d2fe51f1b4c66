"""A cluster to try things on: real Slurm, fake GPUs, one machine. Nothing of it runs in production."""
