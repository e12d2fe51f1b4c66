"""Offline analyses: what the detection would say of a kernel log or of recorded step times."""
