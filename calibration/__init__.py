"""How often what nfd says is wrong: its intervals, the verdicts of a check, and the alerts of a
watch.

``coverage`` counts how often 95 % intervals contain a truth that is given; ``coverage_cases`` and
``coverage_laws`` draw the numbers that it repeats. ``verdicts`` counts false alarms and misses of
``nfd.check``, on sound networks and on networks that were broken on purpose. ``alarms`` does so for
``nfd.Watch``, and keeps every network in ``alarms.jsonl``. ``sound_bank`` counts both errors of
both, of self-tests and of transfers, on networks that set no limit. The first two fill their pages,
``docs/coverage.md`` and ``docs/verdicts.md``. ``kernels_in_training`` compares kernels of
``nfd.predict`` with dense networks and Definition 1, and fills its page; ``kernels`` compares
kernels and ensembles with dense networks, and fills a table of ``docs/mathematics``.
"""
