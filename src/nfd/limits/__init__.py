"""The limits of the paper's networks as width and depth grow."""
