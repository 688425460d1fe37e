"""What every layer above rests on: errors, random streams, activations and their Gaussian moments."""
