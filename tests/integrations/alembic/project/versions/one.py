"""Makes a table, and takes its time."""

import os
import sys
import time

import sqlalchemy as sa
from alembic import op

revision, down_revision = "one", None


def upgrade() -> None:
    op.create_table("item", sa.Column("id", sa.Integer, primary_key=True), sa.Column("name", sa.String(50)))
    print("the table is made", file=sys.stderr, flush=True)
    time.sleep(float(os.environ.get("FIRST_TAKES", "0.3")))
    while "FIRST_UNTIL" in os.environ and not os.path.exists(os.environ["FIRST_UNTIL"]):
        time.sleep(0.01)


def downgrade() -> None:
    op.drop_table("item")
