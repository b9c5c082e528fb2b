"""The engine: the one acquire loop, the life of a hold, and the watchdog that renews."""
