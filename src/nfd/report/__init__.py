"""Tables to charts, charts to one offline page."""
