"""The page-view demo: several services count requests in one store, without and with a lock."""
