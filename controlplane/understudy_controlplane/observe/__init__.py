"""Looks: reads Slurm, asks slurmds, joins live telemetry and the database into one snapshot. Writes nothing."""
