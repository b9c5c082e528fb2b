"""Adds a column."""

import time

import sqlalchemy as sa
from alembic import op

revision, down_revision = "three", "two"


def upgrade() -> None:
    op.add_column("item", sa.Column("price", sa.Integer))
    time.sleep(0.1)


def downgrade() -> None:
    op.drop_column("item", "price")
