"""The env.py of a project, as `alembic init` writes it, for both flavors.

``-x lock=`` says where the lock is, and ``-x lease=`` how long its lease is on a store.
"""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from logging.config import fileConfig
from typing import Any

import sqlalchemy
from alembic import context
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from leasehold import Client
from leasehold.integrations.alembic import migration_lock

asked = context.get_x_argument(as_dictionary=True)
where = asked.get("lock", "here")  # here, off, or the URL of a store
options: dict[str, Any] = {"timeout": float(asked.get("timeout", "60")), "pooler": asked.get("pooler", "")}
if "lease" in asked:  # `migration_lock` has no such option: it takes the default
    defaults: Any = Client.lock.__kwdefaults__
    defaults["lease"] = float(asked["lease"])
fileConfig(context.config.config_file_name)


def migrate(connection: sqlalchemy.Connection) -> None:
    context.configure(connection=connection, transaction_per_migration="each" in asked)
    lock: Any = nullcontext() if where == "off" else migration_lock(connection if where == "here" else where, **options)
    with lock, context.begin_transaction():
        context.run_migrations()


async def migrate_async() -> None:
    engine = create_async_engine(asked["url"], poolclass=NullPool)
    async with engine.connect() as connection:
        await connection.run_sync(migrate)
    await engine.dispose()


if "async" in asked:
    asyncio.run(migrate_async())
else:
    with sqlalchemy.create_engine(asked["url"], poolclass=NullPool).connect() as connection:
        migrate(connection)
