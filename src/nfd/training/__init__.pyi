from .loop import Step as Step
from .loop import train as train
