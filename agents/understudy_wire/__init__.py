"""What travels between nodes and the control plane, and among nodes: each message, line and frame, defined once."""
