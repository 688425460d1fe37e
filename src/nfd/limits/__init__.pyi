from .kernels import kernel as kernel
from .predict import Outputs as Outputs
from .predict import extrapolated as extrapolated
