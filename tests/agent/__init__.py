"""Promises of the node agent and of the training hook, over real sockets and a real (small) control plane."""
