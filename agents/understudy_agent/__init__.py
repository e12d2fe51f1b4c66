"""What runs on a compute node: the node agent, the launcher (`launch/`), the Slurm hooks (`hooks/`) and the self-check
(`selfcheck/`).

Belongs to the agent: reading devices, the kernel log and the ranks of this node, and sending what it reads. Must not:
judging (is this GPU broken?), changing anything on the node, or importing the control plane. It needs msgspec, httpx
and nvidia-ml-py besides the standard library.

`wire.py` defines all messages between the agent and the control plane.
"""
