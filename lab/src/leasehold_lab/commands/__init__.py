"""The commands that this distribution adds to ``leasehold``: demo, verify, bench, servers."""
