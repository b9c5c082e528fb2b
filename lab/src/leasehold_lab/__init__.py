"""The laboratory of leasehold: real servers, a fault proxy, simulated time, the conformance kit, demo, bench, verify."""
