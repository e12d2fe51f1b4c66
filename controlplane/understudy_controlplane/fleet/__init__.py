"""NOUNS: what the control plane talks about. Values only: no I/O, no clock, no judgement.

Belongs here: node, job, incident, finding, decision, recovery, checkpoint, snapshot, and what Slurm says of them.
Must not: anything that reads a device, a database or the time.
"""
