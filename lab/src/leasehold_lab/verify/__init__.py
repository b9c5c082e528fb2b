"""Looks for broken promises in a user's own deployment: several processes, faults, a history, a verdict, a picture."""
