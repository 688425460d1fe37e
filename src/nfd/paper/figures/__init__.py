"""The figures of the paper: the runs they need, and what is read from them."""

from __future__ import annotations

from nfd.paper.figures import figure1, figure2, figure3, figure4, figure5, figure6
from nfd.paper.figures.figure import Figure

FIGURES: dict[str, Figure] = {
    "1": figure1.FIGURE,
    "2": figure2.FIGURE,
    "3": figure3.FIGURE,
    "4": figure4.FIGURE_4,
    "5": figure5.FIGURE,
    "6": figure6.FIGURE,
    "7": figure4.FIGURE_7,
}
