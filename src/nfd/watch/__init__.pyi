from .bands import Band as Band
from .bands import WatchRow as WatchRow
from .causes import Alert as Alert
from .causes import Cause as Cause
from .causes import Deviation as Deviation
from .notices import AlertError as AlertError
