"""JUDGEMENT: what follows from findings. Pure: `snapshot, findings → decisions`.

Belongs here: the table of transitions, the guards, the choice of spares and of the restore point, plans.
Must not: effects of any kind, I/O, clock, randomness, logging.
"""
