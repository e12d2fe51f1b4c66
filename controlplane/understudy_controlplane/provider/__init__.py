"""Questions to the provider of the nodes, by its program, and what it plans. Decides nothing."""
