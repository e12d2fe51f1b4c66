"""SOFT TELEMETRY: the last report of each node and the latest step times, in memory.

Belongs here: what the next report replaces. Lost with the process and whole again one report interval later.
Must not: facts, judgement, SQL.
"""
