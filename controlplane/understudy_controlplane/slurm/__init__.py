"""THE GATE: the only room that spells a Slurm command.

Belongs here: the protocol that the rest of the house speaks, its implementations, and the reading of Slurm's output.
Must not: deciding what to do, or whether a thing may be done.
"""
