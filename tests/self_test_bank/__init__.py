"""Cases of plans that are sound and of plans that are wrong, to count how often a self-test errs."""
