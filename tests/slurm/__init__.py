"""Promises of the Slurm gateway that need no Slurm: reading its output and classifying its failures."""
