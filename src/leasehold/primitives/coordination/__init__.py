"""Primitives that coordinate: election, latch, barrier."""
