"""The readers: NVML, the kernel log, fabric ports and the host of this node. They return what a device answered as a
type of `understudy_wire.hardware`, and decide nothing.
"""
