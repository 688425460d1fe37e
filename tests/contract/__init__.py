"""What is promised to users, through public names and the installed command alone."""
