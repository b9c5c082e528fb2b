"""Functions under a lock: ``once``, ``scheduled``, ``synchronized``, and locks as decorators."""
