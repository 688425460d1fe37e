from .updates import UPDATES as UPDATES
from .updates import Baseline as Baseline
