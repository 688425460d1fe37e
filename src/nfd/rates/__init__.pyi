from .optimum import Scores as Scores
from .transfer import Transfer as Transfer
from .transfer import drift as drift
from .transfer import fit_transfer as fit_transfer
