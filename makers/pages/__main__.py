"""Fill every page of evidence from stored numbers: ``python -m makers.pages``."""

from __future__ import annotations

from makers.pages.catalogue import SOURCES

for source in SOURCES:
    source.fill()
    print(source.path.name)
