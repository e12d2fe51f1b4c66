"""Promises of the testbed: what it plays, it plays as the real thing would."""
