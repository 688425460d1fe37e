"""The paper's networks, with dense or deferred weights."""
