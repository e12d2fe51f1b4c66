"""Work on files for the control plane, with the rights of their owner alone."""
