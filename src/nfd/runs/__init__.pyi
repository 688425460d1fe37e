from .loop import Step as Step
from .loop import train as train
from .losses import cross_entropy as cross_entropy
from .sweep import upset_in as upset_in
