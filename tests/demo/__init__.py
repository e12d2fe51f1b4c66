"""The show: the main job, end to end, on a real Slurm cluster on this machine."""
