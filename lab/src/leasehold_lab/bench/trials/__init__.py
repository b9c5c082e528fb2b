"""One kind of trial a file. Each trial runs in its own forked process."""
