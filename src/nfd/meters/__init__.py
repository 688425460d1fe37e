"""What training changed: updates of features and functions, and verdicts on their slopes."""
