"""The laboratory of leasehold: real servers, a fault proxy, simulated time, conformance kit, demo, bench, verify."""
