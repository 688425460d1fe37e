"""The data sets of the paper's figures: digits, CIFAR-10, and folders of images."""
