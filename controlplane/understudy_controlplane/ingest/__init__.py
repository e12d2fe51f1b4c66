"""DOORS IN: what nodes tell us. Checks who speaks and whether it makes sense, and hands it on.

Belongs here: authentication, decoding, limits, clear refusals. Must not: judging or acting on what was said.
"""
