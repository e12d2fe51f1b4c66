"""CALCULATORS: figures from facts. Pure."""
