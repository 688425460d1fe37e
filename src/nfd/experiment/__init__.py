"""Experiments: a configuration that runs, and the rows it leaves."""
