"""Data sets: normalised tensors and deterministic batches."""
