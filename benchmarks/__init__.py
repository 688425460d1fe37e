"""How fast nfd is: time and memory, as ratios to opponents, to the machine's limits, and to an
earlier result.

``python -m benchmarks.run`` measures all parts (``dense``, ``networks``, ``structured``,
``kernels``, ``particles``, ``plans``, ``gpu``), ``check`` compares the result with
``baseline.json``, and ``cost`` and ``watch`` say what questions and a watch cost. ``measure``,
``ratio`` and ``result`` are what the parts share; ``jobs`` and ``counted`` are their work.
``tangents`` runs in the old environment of ``neural-tangents.txt``.
"""
