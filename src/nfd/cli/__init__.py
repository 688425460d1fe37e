"""The ``nfd`` command: it prints and writes, and computes nothing."""
