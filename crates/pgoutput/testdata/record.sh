#!/usr/bin/env bash
# Records pgoutput's messages of scenario.sql from a running server, one a line in hexadecimal:
#   record.sh NAME PSQL-ARGUMENT...      as: record.sh pg15 -h 127.0.0.1 -p 5433 -U postgres
# Makes the database tailpost_record anew. Writes NAME.hex, NAME-roots.hex and NAME-binary.hex beside this script.
set -euo pipefail
cd "$(dirname "$0")"
name=$1; shift
export PGOPTIONS='-c client_encoding=UTF8 -c timezone=UTC -c datestyle=ISO -c intervalstyle=postgres -c extra_float_digits=3 -c bytea_output=hex -c client_min_messages=warning'
run() { psql -X -w -q -At -v ON_ERROR_STOP=1 "${@:2}" -d "$1"; }

clean() {
    run postgres "$@" <<<"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = 'recorded';
SELECT pg_replication_origin_drop(roname) FROM pg_replication_origin WHERE roname = 'elsewhere';
DROP DATABASE IF EXISTS tailpost_record;" >/dev/null
}
peek() { # PUBLICATION-NAMES ARGUMENT...: the rest are more options of pgoutput, in SQL
    local publications=$1 options=$2; shift 2
    run tailpost_record "$@" <<<"SELECT encode(data, 'hex') FROM pg_logical_slot_peek_binary_changes('recorded', NULL, NULL,
'proto_version', '1', 'publication_names', $publications $options)"
}
record() { # FILE WHAT ARGUMENT...
    local file=$1 what=$2; shift 2
    { echo "# PostgreSQL $(run postgres "$@" <<<'SHOW server_version'), scenario.sql, $what"; peek "$publications" "$options" "$@"; } >"$file"
}

clean "$@"
run postgres "$@" <<<"CREATE DATABASE tailpost_record ENCODING 'UTF8' TEMPLATE template0" >/dev/null
run tailpost_record "$@" -f scenario.sql >/dev/null
publications="'\"leaves\"'" options=", 'messages', 'true'" record "$name.hex" 'all tables, logical messages' "$@"
publications="'\"roots\"'" options='' record "$name-roots.hex" 'publish_via_partition_root' "$@"
publications="'\"b,in\"\"ary''); DROP--\"'" options=", 'binary', 'true'" record "$name-binary.hex" 'binary' "$@"
clean "$@"
