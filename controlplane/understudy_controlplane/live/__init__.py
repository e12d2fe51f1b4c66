"""Telemetry in memory: the last report of each node and the latest step times. A restart loses them for one report."""
