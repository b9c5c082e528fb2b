"""The layouts on database servers: one algorithm for both servers and both libraries; see ``docs/interop.md``."""
