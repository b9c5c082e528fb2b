"""The records of `leasehold.observability.recorder` as a report: what each lock went through, and its time line."""
