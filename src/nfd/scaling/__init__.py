"""How learning rates scale with width and depth."""
