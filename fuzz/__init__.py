"""Fuzzing of what reads files from outside: targets, seeds and a runner."""
