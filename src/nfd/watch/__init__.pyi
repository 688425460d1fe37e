from .alerts import Alert as Alert
from .alerts import Cause as Cause
from .bands import Band as Band
from .rows import Kept as Kept
from .rows import LeftOut as LeftOut
from .rows import WatchRow as WatchRow
