"""Scaling bugs of public code, each beside its sound twin."""
