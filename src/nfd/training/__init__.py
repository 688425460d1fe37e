"""The one training loop: batches -> step -> rows."""
