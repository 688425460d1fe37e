"""How often ``nfd.check``, ``Plan.self_test``, ``nfd.transfer`` and ``nfd.Watch`` are wrong, on a
bank of networks that set no limit: none was read when a threshold was chosen.

``plain`` and ``residual`` have the networks, ``data`` and ``losses`` what they are trained on,
``cases`` the rule under which each is sound, and a mistake for half of them. ``by_hand`` scales
networks as users do, so that a mistake is in their code and not in a plan. ``judges`` asks.

    python -m calibration.sound_bank [JUDGE ...]
"""
