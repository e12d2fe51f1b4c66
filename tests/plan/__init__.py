"""What a plan says, held against what was published and against the simulator."""
