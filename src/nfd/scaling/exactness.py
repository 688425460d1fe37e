"""Which options an optimizer takes exactly; the rest is refused in words. Nothing here needs PyTorch."""

from __future__ import annotations

from nfd.core.errors import InputError


def check_optimizer(
    optimizer: str, *, rule: str = "mup", momentum: float = 0.0, weight_decay: float = 0.0, deferred: bool = False
) -> None:
    """Refuse what an optimizer would leave out, or what has no form free of width and depth.

    Args:
        optimizer: its name. rule: the learning-rate rule. momentum, weight_decay: as asked for.
        deferred: whether it is to step weights that are revealed only where they are asked.

    Raises:
        ValueError: naming the option and the optimizer that takes it.
    """
    if optimizer == "sgd":
        return
    if rule == "ntk":
        raise InputError(f"rule='ntk' has no rates for optimizer={optimizer!r}; use 'sgd' or another rule.")
    if momentum:
        raise InputError(f"momentum is for optimizer='sgd'; got optimizer={optimizer!r}. Drop it.")
    if deferred:
        raise InputError(
            f"weights='deferred' is for optimizer='sgd'; got optimizer={optimizer!r}, which acts on every entry of a "
            "matrix by itself. Use 'sgd', or dense weights."
        )
    if weight_decay and optimizer == "adam":
        raise InputError(
            "weight_decay of optimizer='adam' goes through its normaliser and has no form free of width and depth; "
            f"got weight_decay={weight_decay:g}. Use optimizer='adamw'."
        )
