from .depth import extrapolated as extrapolated
from .ensemble import Outputs as Outputs
from .function_space import KernelFacts as KernelFacts
from .function_space import kernel_facts as kernel_facts
