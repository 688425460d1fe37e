from .sweep import upset_in as upset_in
