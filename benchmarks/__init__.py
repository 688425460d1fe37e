"""How fast nfd is: time and memory, as ratios to opponents, to the machine's limits, and to an
earlier result.

``python -m benchmarks.run`` measures all parts (``networks``, ``structured``, ``kernels``,
``looks``, ``particles``, ``plans``, ``gpu``), ``check`` compares the result with
``baseline.json``, and ``cost`` and ``watch`` say what questions and a watch cost. ``measure``,
``ratio`` and ``result`` are what the parts share; ``jobs`` are their work, ``counted`` its least
time, and ``dense`` is an opponent.
``tangents`` runs in the old environment of ``neural-tangents.txt``.
"""
