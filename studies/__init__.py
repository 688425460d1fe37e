"""Questions with criteria that were written down before the main run, and the numbers that answered
them.

Each module asks one question. Its docstring holds the setting and the criteria, as they stood
before the numbers came; ``python -m studies.NAME`` measures and stores the numbers beside it, as
``NAME.json``. The answers are pages of ``docs/``, whose charts ``makers/`` draws. ``byte_gpt`` is
the model and the data that several of them train, and ``nanogpt.txt`` is the script that ``beside``
edits.
"""
