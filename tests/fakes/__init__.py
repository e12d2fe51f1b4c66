"""Fakes that pass the contract suite of the real thing. Must not: mocks, or what a single test could hold itself."""
