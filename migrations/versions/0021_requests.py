"""Which decision answers an operator's request, and when a hold or a pause ends by itself. `test` is `validate` now.

Revision ID: 0021
Revises: 0020
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

INTENT = sa.table("operator_intent", sa.column("verb", sa.String))


def upgrade() -> None:
    op.add_column("operator_intent", sa.Column("until", sa.Double()))
    op.execute(sa.update(INTENT).where(INTENT.c.verb == "test").values(verb="validate"))
    with op.batch_alter_table("decision") as batch:
        batch.add_column(sa.Column("request", sa.BigInteger().with_variant(sa.Integer(), "sqlite")))
        batch.create_foreign_key("fk_decision_request_operator_intent", "operator_intent", ["request"], ["id"])
        batch.create_index("ix_decision_request", ["request"])


def downgrade() -> None:
    with op.batch_alter_table("decision") as batch:
        batch.drop_index("ix_decision_request")
        batch.drop_constraint("fk_decision_request_operator_intent", type_="foreignkey")
        batch.drop_column("request")
    op.execute(sa.update(INTENT).where(INTENT.c.verb == "validate").values(verb="test"))
    op.drop_column("operator_intent", "until")
