"""Routes that people and programs read and act by: JSON, metrics, health, operators' requests. Judges nothing."""
