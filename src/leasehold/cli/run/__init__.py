"""``leasehold run``: a command that runs while a lock is held."""
