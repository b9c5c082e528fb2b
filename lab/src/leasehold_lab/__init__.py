"""For tests of leasehold itself and of stores by others: real servers, a fault proxy, worlds, the conformance kit."""
