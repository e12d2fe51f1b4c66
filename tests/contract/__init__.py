"""One suite for all implementations of a protocol: what passes here may stand in for the others."""
