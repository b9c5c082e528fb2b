"""Redis under Sentinel: find the primary and follow it after a failover."""
