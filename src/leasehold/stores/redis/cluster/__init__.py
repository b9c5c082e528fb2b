"""Redis Cluster: the slot map, and one store for each node that has slots."""
