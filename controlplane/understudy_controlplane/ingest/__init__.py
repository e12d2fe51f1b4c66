"""Routes that take reports of agents and launchers: authentication, limits, clear refusals. Judges nothing."""
