from .alerts import Alert as Alert
from .alerts import Cause as Cause
from .bands import Band as Band
from .beginning import OtherStart as OtherStart
from .beginning import StartAlert as StartAlert
from .rows import Kept as Kept
from .rows import LeftOut as LeftOut
from .rows import WatchRow as WatchRow
