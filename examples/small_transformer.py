"""What the README and ``make demo`` ask: a small Transformer that reads a digit as eight tokens of
eight pixels.
"""

from torch import nn

from nfd.data import digits


class Transformer(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        block = nn.TransformerEncoderLayer(
            width, width // 16, 4 * width, 0.0, batch_first=True, norm_first=True
        )
        self.embed = nn.Linear(8, width)
        self.encoder = nn.TransformerEncoder(
            block, depth, nn.LayerNorm(width), enable_nested_tensor=False
        )
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        return self.head(self.encoder(self.embed(x)).mean(1))


make_model = Transformer  # of (width, depth)
x, y = digits().batches(size=32, steps=20, seed=0)
batches = list(zip(x.unflatten(2, (8, 8)), y))
