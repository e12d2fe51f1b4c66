"""Who may do what: tokens, the identity of a request, and its permission. Judges nothing else."""
