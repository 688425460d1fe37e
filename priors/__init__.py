"""What fits the priors that the package ships, to other people's runs, and what tests them on runs
held out.

``ladders`` fits the prior of the law of the loss, ``curves`` that of a run's remaining loss, and
``rate_law`` that of the best learning rate: ``python -m priors.NAME --data FOLDER`` forecasts what
is held out, and ``--prior`` writes the file of the package. ``unseen_ladders`` asks the public call
about ladders that no prior was fitted to. The runs are not ours to copy: FOLDER stays where it is,
and ``docs/real-ladders.md`` shows the results.
"""
