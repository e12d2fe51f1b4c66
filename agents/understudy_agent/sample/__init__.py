"""The readers: NVML, the kernel log, fabric ports and the host of this node.

Belongs here: reading a device, and returning what it answered as a type of `understudy_wire.hardware`. Must not:
sending, waiting for the network, or deciding what an answer means.
"""
