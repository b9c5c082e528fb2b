"""The tables of the SQL stores: what they must look like, and how they are created."""
