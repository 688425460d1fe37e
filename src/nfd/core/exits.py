"""Exit codes of the command line."""

VERDICT, INPUT, OURS, INTERRUPTED = 1, 2, 70, 130  # 70 is EX_SOFTWARE of sysexits.h
