"""Models that others wrote, as ``make_model(width, depth)``, and what the published tables say of
every tensor.
"""
