"""Sweeps: many runs, planned, executed anywhere, stored once."""
