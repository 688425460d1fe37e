"""Makers of the pages, charts and notebooks of ``docs/`` and ``examples/``.

Those two folders hold what is made, and no code.
Each maker is called as what it makes: ``python -m makers.NAME`` writes a page (``benchmarks_page``,
``checks``, ``real_ladders_page``, ``watched_run``), charts (``evidence``, ``question_charts``) or
notebooks (``notebooks``). They read stored numbers where these are kept: beside the page that links
them, in ``studies/``, or in ``numbers/``. ``tables`` and ``pictures`` are tools below all of them,
which the folders that measure use too.
"""
