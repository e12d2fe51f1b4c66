"""`understudy selfcheck`: does this node compute right? Matrices whose product is known, on each GPU, in seconds.

Belongs here: what is computed, on what, and the judgement of that one run. Must not: the control plane, Slurm, changes
to the node. Needs torch (for GPUs) or numpy, whichever the environment has.
"""
