from .rows import Kept as Kept
from .rows import LeftOut as LeftOut
from .rows import WatchRow as WatchRow
