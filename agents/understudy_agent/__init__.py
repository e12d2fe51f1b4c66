"""The service on a compute node: it reads devices, the kernel log and the ranks of this node, and sends what it reads.

Must not: judging (is this GPU broken?), changing anything on the node, or importing the control plane. It needs
msgspec, httpx and nvidia-ml-py besides the standard library. Slurm's hooks (`hooks/`) and the `understudy` command are
here, too.
"""
