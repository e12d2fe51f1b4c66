"""Recovery: carries plans out, step by step, through the journal.

Belongs here: the runner and the steps. Must not: choosing (that was `decide`), SQL, words of a Slurm command.
Every step looks first and acts only if its effect is not there yet, so any step can be repeated, and whoever finds
the journal after a crash goes on where it ends.
"""
