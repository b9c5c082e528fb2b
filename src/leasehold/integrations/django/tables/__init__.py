"""An app of its own: its migration makes the tables of a store in Django's database, in place of ``leasehold init``."""
