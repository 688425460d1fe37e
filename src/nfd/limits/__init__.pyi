from .extrapolate import Outputs as Outputs
from .extrapolate import extrapolated as extrapolated
from .function_space import KernelFacts as KernelFacts
from .function_space import kernel_facts as kernel_facts
