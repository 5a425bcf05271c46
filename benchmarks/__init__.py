"""Benchmarks of torch_transpose: `python -m benchmarks`. README.md beside this file says how they measure."""
