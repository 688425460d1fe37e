from .extrapolate import Outputs as Outputs
from .extrapolate import extrapolated as extrapolated
from .kernels import kernel as kernel
