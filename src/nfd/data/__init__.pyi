from .dataset import Dataset as Dataset
from .dataset import Images as Images
from .digits import digits as digits
