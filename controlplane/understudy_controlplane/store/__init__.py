"""DURABLE FACTS: the only room with SQL.

Belongs here: tables, transactions, and their translation to and from nouns. Must not: judgement, time, Slurm.
Whatever a method here has returned from is on disk.
"""
