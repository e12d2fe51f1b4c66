"""The whole control plane against a virtual cluster, on a virtual clock: Slurm, agents, gangs, people and faults."""
