"""Names that the store still takes from here."""

from nfd.core.files import STORE_ID, not_ours

__all__ = ["STORE_ID", "not_ours"]
