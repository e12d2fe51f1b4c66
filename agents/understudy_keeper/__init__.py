"""The keeper: parts of checkpoints in the node's memory, and a copy of each in another node's.

A program of its own beside the agent (docs/peer-memory.md), because what it holds must outlive a restart of the agent,
and because its memory has a limit of its own. It needs Python, and MUNGE between nodes.
"""
