"""The processes of a run, and what is measured around them."""
