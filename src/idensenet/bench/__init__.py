"""Measuring how fast this machine is, and how fast we are on it."""
