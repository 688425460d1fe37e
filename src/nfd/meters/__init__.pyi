from .updates import Baseline as Baseline
from .verdict import THRESHOLDS as THRESHOLDS
from .verdict import verdict_of as verdict_of
