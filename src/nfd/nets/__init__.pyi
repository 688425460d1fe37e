from .deferral import Replacement as Replacement
from .network import Network as Network
from .streams import Streams as Streams
from .wide import Reason as Reason
