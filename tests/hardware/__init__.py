"""`make hardware`: what the agent and the hook read and cost on a machine with real NVIDIA GPUs."""
