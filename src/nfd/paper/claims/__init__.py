"""The statements of the paper, each with the measurement that tests it."""
