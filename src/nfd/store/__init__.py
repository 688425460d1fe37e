"""Results on disk: written beside and renamed, so that a file is whole or absent."""
