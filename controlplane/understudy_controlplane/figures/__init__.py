"""Calculators: figures from facts. Pure."""
