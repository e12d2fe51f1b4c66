"""WINDOWS: what people and Prometheus may look at. Read only.

Belongs here: JSON, metrics, health. Must not: change anything, judge anything.
"""
