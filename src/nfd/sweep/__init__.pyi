from .optimum import Scores as Scores
from .sweep import upset_in as upset_in
from .transfer import drift as drift
