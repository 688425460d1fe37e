from .network import Network as Network
from .streams import Streams as Streams
