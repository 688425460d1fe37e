"""The column of a progress bar that shows the time left: predicted where there is a prediction, else from the speed."""

from __future__ import annotations

import math
from datetime import timedelta

from rich.progress import Task, TimeRemainingColumn
from rich.text import Text


class Countdown(TimeRemainingColumn):
    """Counts down to ``ends``, a field of the task on the clock of its bar; None where nothing is predicted."""

    def render(self, task: Task) -> Text:
        """The time left."""
        ends = task.fields["ends"]
        if ends is None or task.finished:
            return super().render(task)
        left = max(0, math.ceil(ends - task.get_time()))
        return Text(str(timedelta(seconds=left)), style="progress.remaining")
