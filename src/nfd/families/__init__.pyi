from .member import Member as Member
from .resnets import networks as networks
