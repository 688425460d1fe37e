"""How long tests wait for others."""

PATIENCE = 600.0  # seconds after which an event is given up: a test that gets there has failed
