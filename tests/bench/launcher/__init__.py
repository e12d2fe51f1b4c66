"""How the launcher grows with its gang: `make bench-launcher`, build/bench/launcher.json."""
