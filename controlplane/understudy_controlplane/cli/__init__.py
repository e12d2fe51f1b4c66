"""The command line: requests to a running control plane, and commands that need none."""
