"""``leasehold top``: the locks of a store, live in a terminal. It needs Textual, the extra ``top``."""
