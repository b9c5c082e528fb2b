"""A model of an etcd cluster."""
