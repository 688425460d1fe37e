from .alerts import Alert as Alert
from .alerts import Cause as Cause
from .alerts import Deviation as Deviation
from .bands import Band as Band
from .bands import WatchRow as WatchRow
from .notices import AlertError as AlertError
