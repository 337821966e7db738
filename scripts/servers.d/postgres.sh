# shellcheck shell=bash
# PostgreSQL. Each *_prepare leaves the server's command line in CMD.

postgres_prepare() { # KIND PORT DIR ARG...
    local kind=$1 port=$2 dir=$3 bin hba=() own=(); shift 3
    bin=$(dirname "$(kind_binary "$kind")")
    while [ $# -gt 0 ]; do
        case $1 in
        --hba) hba+=("$2"); shift 2 ;;
        --tls)
            make_certificates "$dir"
            own+=(-c ssl=on -c "ssl_cert_file=$dir/tls/server.pem" -c "ssl_key_file=$dir/tls/server.key")
            shift
            ;;
        *) own+=("$1"); shift ;;
        esac
    done
    if [ ! -f "$dir/data/PG_VERSION" ]; then
        rm -rf "$dir/data"
        copy_template "$kind" "$dir" postgres_template
    fi
    printf '%s\n' "${hba[@]}" 'host all all 127.0.0.1/32 trust' 'host replication all 127.0.0.1/32 trust' \
        >"$dir/data/pg_hba.conf"
    # shellcheck disable=SC2034
    CMD=("$bin/postgres" -D "$dir/data" -p "$port" -h 127.0.0.1 -k ''
        -c wal_level=logical -c max_wal_senders=60 -c max_replication_slots=60 -c max_connections=200
        -c fsync=off -c shared_buffers=64MB -c timezone=UTC -c log_line_prefix='%m [%p] ' "${own[@]}")
}

postgres_template() { # KIND FOLDER
    run_in "$1" "$2" "$(dirname "$(kind_binary "$1")")/initdb" -D "$2/data" -U postgres -A trust -E UTF8 --locale=C --no-sync
}

postgres_answers() { # KIND PORT DIR
    "/usr/lib/postgresql/$(own_postgres_major)/bin/psql" -X -w -q -At -h 127.0.0.1 -p "$2" -U postgres -d template1 \
        -c 'select 1' 2>/dev/null | grep -qx 1 && return 0
    # With --hba the superuser may need a password or TLS: then a server that says so is up.
    "/usr/lib/postgresql/$(own_postgres_major)/bin/pg_isready" -q -h 127.0.0.1 -p "$2"
}
