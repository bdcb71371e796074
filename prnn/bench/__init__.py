"""Measurements against torch and other libraries: the programs of `prnn bench`."""
