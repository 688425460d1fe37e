"""What a sweep has run: one SQLite file that one driver writes and anybody reads."""
