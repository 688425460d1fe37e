from .scaling_law import scaling_law as scaling_law
from .transfer import transfer as transfer
