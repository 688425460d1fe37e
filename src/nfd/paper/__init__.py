"""The paper's figures, statements and limit, on public names.

The paper is *Understanding Scaling Laws in Deep Neural Networks via Feature Learning Dynamics*.

Its seven figures: ``figures/figure1.py`` to ``figure6.py``, and Fig. 7 beside Fig. 4. Each says
    which networks it trains (``runs.py``), and what its panels show (``figures/panels.py``). In the
    shell: ``nfd paper figure 5``.
Definition 1, the limit: ``nfd.solve_nfd`` solves it, and ``two_limits.py`` compares it with
    networks.
Its statements: ``claims/table.py`` lists all, and ``claims/theory.py`` and the modules beside it
    measure them, from the networks of the figures where these are enough. In the shell: ``nfd
    paper claims --only fig5``.
A study on your data: ``study.py`` measures how far networks are from both limits, and
    ``findings.py`` says it.
What these share: ``settings.py`` and ``commands.py`` (options),
``data.py``, ``streams.py``, ``pages.py``.
"""
