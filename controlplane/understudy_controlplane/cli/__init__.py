"""THE OPERATOR'S HAND: what people tell the control plane, and the command line.

Belongs here: intents as rows, the CLI. Must not: carrying them out; the loop reads them like anything else.
"""
