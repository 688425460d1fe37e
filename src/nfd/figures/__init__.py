"""The figures of the paper: the runs they need, and what is read from them."""
