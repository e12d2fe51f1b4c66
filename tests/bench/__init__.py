"""Benchmarks: `make bench`. Each writes `build/bench/NAME.json` through `tests.bench.result`."""
