from .ladder import BestSplit as BestSplit
from .ladder import LadderLaw as LadderLaw
from .ladder import NextRun as NextRun
from .scaling_law import BestSize as BestSize
from .scaling_law import ScalingLaw as ScalingLaw
from .scaling_law import fit_scaling_law as fit_scaling_law
