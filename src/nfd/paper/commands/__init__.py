"""The commands ``nfd paper study``, ``nfd paper figure`` and ``nfd paper claims``."""
