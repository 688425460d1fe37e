"""The paper: its figures and its statements, made with the public names of the library."""
