"""A recogniser from a folder of read sentences."""
