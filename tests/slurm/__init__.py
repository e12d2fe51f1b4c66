"""Promises of the Slurm gate that need no Slurm: reading its output, and telling its failures apart."""
