"""Alembic migrations of the fleet database: `understudy serve` runs them at its start."""
