"""Strict mode: quarantine after a restart or failover, and a quorum of replicas for each grant."""
