"""The connections with a cluster of Hazelcast, through its driver."""
