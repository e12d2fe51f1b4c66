"""Reads Slurm, slurmds, live telemetry and the database, and joins them into one snapshot. Writes nothing."""
