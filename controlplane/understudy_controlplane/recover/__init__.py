"""Recovery: carries plans out, step by step, through the journal.

Belongs here: the runner and the steps. Must not: choosing (`decide` does), SQL, the form of a Slurm command.
Every step looks first and acts only if its effect is not there yet, so any step can be repeated, and after a crash
the next process continues where the journal ends.
"""
