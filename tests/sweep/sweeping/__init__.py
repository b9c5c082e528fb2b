"""What the sweeps share: the operations, the systems, and cancellations at each suspension."""
