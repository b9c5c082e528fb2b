"""A model of a ZooKeeper ensemble."""
