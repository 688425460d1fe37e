from .budget import BestSize as BestSize
from .budget import BestSplit as BestSplit
from .scaling_law import Capacity as Capacity
from .scaling_law import fit_scaling_law as fit_scaling_law
