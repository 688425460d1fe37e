from .family import networks as networks
from .member import Member as Member
from .network import Network as Network
from .network import Streams as Streams
