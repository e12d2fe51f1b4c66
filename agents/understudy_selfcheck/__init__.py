"""`understudy selfcheck`: does this node compute correctly? Multiplies matrices whose product is known, on each GPU, in
seconds.

Belongs here: the computation, its backends, and the verdict on that one run. Must not: the control plane, Slurm,
changes to the node. Needs torch (for GPUs) or numpy, whichever the environment has.
"""
