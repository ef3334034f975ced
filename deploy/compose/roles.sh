#!/bin/sh
# The application's role: it may read and write rows; the migrations say of which tables.
set -eu
psql -v ON_ERROR_STOP=1 -v password="$APP_PASSWORD" --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" <<'SQL'
CREATE ROLE app LOGIN PASSWORD :'password';
REVOKE ALL ON DATABASE twinpool FROM PUBLIC;
GRANT CONNECT, TEMPORARY ON DATABASE twinpool TO app;
SQL
