"""The result of a run as figures and as HTML page."""
