from .rows import Record as Record
from .store import Store as Store
