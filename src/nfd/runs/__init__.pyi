from .losses import cross_entropy as cross_entropy
from .sweep import upset_in as upset_in
from .trial import Step as Step
from .trial import train as train
