"""What every answer can do: print itself, show itself in a notebook, and give its table."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nfd.core.answer import Answer, in_terminal
from nfd.core.errors import InputError
from nfd.core.tables import Row

if TYPE_CHECKING:
    from nfd.report.page import Section


class Shown(ABC):
    """An answer that a terminal, a notebook and a script can show."""

    @property
    @abstractmethod
    def answer(self) -> Answer:
        """State, decision, evidence and what to run next."""

    @property
    @abstractmethod
    def table(self) -> Sequence[Row]:
        """The numbers behind the answer, a dict for each row."""

    @abstractmethod
    def first_sections(self) -> list[Section]:
        """What a page and a notebook show first, below the answer."""

    def __str__(self) -> str:
        return in_terminal(self.answer)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.answer.brief}>"

    def _repr_html_(self) -> str:
        """Show the first screen of the answer's page in a notebook."""
        from nfd.report.page import fragment

        return fragment(self.answer, self.first_sections(), f"answer{id(self):x}")

    def plot(self) -> Any:
        """Draw the answer as a chart of Altair's, which a notebook shows.

        Save it by its method ``save``, such as ``.save("answer.svg")``.

        Raises:
            ValueError: for an answer that has no chart.
        """
        from nfd.report.picture import row_of

        for section in self.first_sections():
            if len(section.pictures) == 1:
                return section.pictures[0].chart
            if section.pictures:
                return row_of(section.pictures).chart
        raise InputError(f"this {type(self).__name__} has no chart: {self.answer.title}.")

    def to_pandas(self) -> Any:
        """Return ``table`` as a DataFrame.

        Raises:
            ImportError: where pandas is not installed.
        """
        try:
            import pandas as pd  # type: ignore[import-untyped]
        except ImportError:
            raise ImportError(
                "to_pandas needs pandas, which is not installed: pip install pandas. The rows are "
                "in .table."
            ) from None
        return pd.DataFrame(list(self.table))
