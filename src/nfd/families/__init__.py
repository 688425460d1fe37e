"""Model families: a network at every width and depth, the paper's and the user's."""
