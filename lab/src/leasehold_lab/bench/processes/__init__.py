"""The processes of a run, and the measurements around them."""
