"""A stock that many requests sell from, in any number of workers, and never below zero.

With a Redis at ``redis://localhost:6379``::

    uvicorn --workers 2 shop:app
    curl -X POST localhost:8000/stock/42/sell
    curl localhost:8000/ready

The stock is a file for each item in the working directory: read, then written. Without the lock, two requests could
sell the same piece.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException

from leasehold import AsyncHold
from leasehold.integrations.fastapi import add_exception_handlers, leasehold_lifespan, lock, readiness

app = FastAPI(lifespan=leasehold_lifespan(os.environ.get("LEASEHOLD_URL", "redis://localhost:6379")))
add_exception_handlers(app)
app.add_api_route("/ready", readiness())


@app.post("/stock/{item_id}/sell")
def sell(item_id: int, hold: Annotated[AsyncHold, Depends(lock("stock:{item_id}", timeout=5))]) -> dict[str, int]:
    """Sell one piece; requests for the same item wait for each other, in all workers."""
    stock = Path(f"stock-{item_id}")
    left = int(stock.read_text()) if stock.exists() else 10
    if left == 0:
        raise HTTPException(410, "sold out")
    time.sleep(0.05)  # the work
    stock.write_text(str(left - 1))
    return {"left": left - 1, "fence": hold.token}
