"""One file, one kind of trial. A trial runs in a process of its own, forked for it."""
