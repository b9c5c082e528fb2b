"""Parts that several stores share: queues and cells as values, clock samples, waiting tickets, a keyed lock."""
