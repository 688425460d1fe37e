"""Texts of the pages of evidence, made from stored numbers: ``python -m makers.pages`` fills all.

A module has the texts of one page by the names of their marks. ``catalogue`` lists the pages.
"""
