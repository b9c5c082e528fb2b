"""What lease rows on a database server have in common, whichever server it is."""
