"""The SQLite file: schema, migrations, tables, and how CARs are packed."""
