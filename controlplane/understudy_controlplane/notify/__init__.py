"""Messages to people and their programs. Judges nothing."""
