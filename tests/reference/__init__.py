"""Slow, readable twins of the library's operations, in float64."""
