"""What SQLite and PostgreSQL share: the parts of a store whose SQL both of them understand."""
