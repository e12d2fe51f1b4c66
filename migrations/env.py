"""Alembic's entry: migrates the connection that it is handed."""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection

from understudy_controlplane.store.tables import metadata


def run() -> None:
    connection: Connection = context.config.attributes["connection"]
    context.configure(connection=connection, target_metadata=metadata, render_as_batch=True)
    with context.begin_transaction():
        context.run_migrations()


run()
