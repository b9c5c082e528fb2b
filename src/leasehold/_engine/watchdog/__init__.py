"""The watchdog of a client: renewals, deadlines, loss notices, and releases that had no reply."""
