"""Model families: a network at every width and depth, the paper's and anyone's."""
