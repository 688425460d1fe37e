from .budget import BestSize as BestSize
from .budget import BestSplit as BestSplit
from .scaling_law import ScalingLaw as ScalingLaw
from .scaling_law import fit_scaling_law as fit_scaling_law
