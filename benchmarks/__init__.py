"""Benchmarks. Each runs its peers in the same run and writes JSON under benchmarks/results."""
