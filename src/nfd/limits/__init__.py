"""The limits of the paper's networks as width and depth grow.

There are two. ``solve_nfd`` solves Definition 1 of the paper, the limit of networks whose backward
pass has weights of its own. Standard networks follow the corrected definition, which has a memory
beside the noise. With zeta_t and y_t Gaussian noise of covariance ``Sigma_t = E[phi(h_t)
phi(h_t)']`` and ``Theta_t = E[g_t g_t']`` over steps, and Lp_j the derivative of the loss at step
j,

    dh_t^(k) = dzeta_t^(k) + sum_{j<k} [r_t^kj - eta_c Lp_j Sigma_t^jk] g_t^(j) dt
    -dg_t^(k) = phi'(h_t^(k)) (dy_t^(k) + sum_{j<=k} s_t^kj phi(h_t^(j)) dt
    - eta_c sum_{j<k} Lp_j Theta_t^jk phi(h_t^(j)) dt)

    r_t^kj = E[phi'(h_t^(k)) dh_t^(k) / dy_t^(j)]    s_t^kj = E[dg_t^(k) / dzeta_t^(j)],

with the ends ``h_0`` and ``g_T`` of Definition 1, which has ``r = s = 0``. ``predict`` solves it by
particles: a deferred network of width n is this system at n particles and step T / L, and its
layers answer with r and s exactly. docs/mathematics/infinite-depth.md has the sketch of a proof.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
