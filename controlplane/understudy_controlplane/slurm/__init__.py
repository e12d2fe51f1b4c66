"""The gateway to Slurm: the only package that runs Slurm commands and reads their output. Decides nothing."""
