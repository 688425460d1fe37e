from .start import at_start as at_start
