"""Documents, and `generate.py`, which makes those that follow from the code."""
