"""Convolutions without stored weights: a linear layer on every patch."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from nfd.nets.factored import FactoredLinear
from nfd.nets.unstored import Unstored


class DeferredConv(nn.Module):
    """A convolution of one or two dimensions: the layer ``linear`` on every patch, so that ranks count patches."""

    def __init__(self, linear: FactoredLinear) -> None:
        super().__init__()
        self.linear = linear

    @property
    def weight(self) -> Unstored:
        """Shape, type and device of the weight that is not stored."""
        return Unstored(self.linear)

    def forward(self, x: Tensor) -> Tensor:
        """``[..., channels, *size]``, as the ``nn.Conv1d`` or ``nn.Conv2d`` that it replaced."""
        conv: Any = self.linear.original
        kernel, dilation, stride = conv.kernel_size, conv.dilation, conv.stride
        mode = "constant" if conv.padding_mode == "zeros" else conv.padding_mode
        x = nn.functional.pad(x, conv._reversed_padding_repeated_twice, mode)
        size = x.shape[-len(kernel) :]
        places = [
            (size_ - dilation_ * (kernel_ - 1) - 1) // stride_ + 1
            for size_, kernel_, dilation_, stride_ in zip(size, kernel, dilation, stride, strict=True)
        ]
        if len(kernel) == 1:  # unfold takes images alone: one of height 1
            x, kernel, dilation, stride = x.unsqueeze(-2), (1, *kernel), (1, *dilation), (1, *stride)
        patches = nn.functional.unfold(x, kernel, dilation, 0, stride)
        y: Tensor = self.linear(patches.transpose(-1, -2))
        return y.transpose(-1, -2).reshape(*y.shape[:-2], -1, *places)
