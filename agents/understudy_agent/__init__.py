"""What runs on a compute node: the node agent, the hook that training code imports (`understudy`, to
its users `understudy`), the launcher (`understudy_agent.launch`) and the self-check.

Belongs to the agent: reading devices, the kernel log and the ranks of this node, and sending what was read. Must not:
judging (is this GPU broken?), changing anything on the node, or importing the control plane. Light by
promise: msgspec, httpx and nvidia-ml-py besides the standard library; `understudy` the standard library
alone.

`wire.py` has the shared words: all that travels between here and the control plane.
"""
