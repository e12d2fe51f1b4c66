"""The readers: NVML, the kernel log, fabric ports and the host of this node.

Belongs here: asking a device, and saying what it answered in the words of `understudy_agent.wire`. Must not: sending,
waiting for the network, or deciding what an answer means.
"""
