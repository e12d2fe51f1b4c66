"""`understudy selfcheck`: does this node compute correctly? Multiplies matrices whose product is known, on each GPU, in
seconds.

It changes nothing on the node, and needs torch (for GPUs) or numpy, whichever the environment has.
"""
