"""Tests are promises: each is named for what a user can rely on, and can fail."""
