from .member import Member as Member
from .network import Network as Network
from .network import Streams as Streams
from .resnets import networks as networks
