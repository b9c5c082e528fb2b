"""Writes a row and an index; on PostgreSQL without blocking writers, which waits for all older snapshots."""

import time

from alembic import op

revision, down_revision = "two", "one"


def upgrade() -> None:
    op.execute("INSERT INTO item (id, name) VALUES (1, 'first')")
    time.sleep(0.1)
    if op.get_bind().dialect.name == "postgresql":
        with op.get_context().autocommit_block():
            op.create_index("item_name", "item", ["name"], postgresql_concurrently=True)
    else:
        op.create_index("item_name", "item", ["name"])


def downgrade() -> None:
    op.drop_index("item_name", "item")
    op.execute("DELETE FROM item WHERE id = 1")
