# shellcheck shell=bash
# MariaDB and MySQL.

mysql_prepare() { # KIND PORT DIR ARG...
    local kind=$1 port=$2 dir=$3; shift 3
    # a Unix socket's path has 107 characters at most
    [ ${#dir} -le 90 ] || die "$dir is too long a name for a socket beside the data (90 characters at most)"
    [ -d "$dir/data" ] || copy_template "$kind" "$dir" mysql_template
    CMD=("$(kind_binary "$kind")" --no-defaults --datadir="$dir/data" --port="$port" --bind-address=127.0.0.1
        --socket="$dir/run/s" --pid-file="$dir/run/mysqld.pid" --tmpdir="$dir/tmp" --log-error="$dir/error.log"
        --server-id="$port" --log-bin="$dir/data/binlog" --binlog-format=ROW --binlog-row-image=FULL
        --skip-name-resolve --innodb-flush-log-at-trx-commit=2 --sync-binlog=0 --innodb-buffer-pool-size=64M)
    case $kind in
    mariadb*) CMD+=(--gtid-strict-mode=ON --log-slave-updates=ON --binlog-annotate-row-events=ON) ;;
    mysql*)
        CMD+=(--gtid-mode=ON --enforce-gtid-consistency=ON --mysqlx=OFF --secure-file-priv=NULL
            --binlog-row-metadata=FULL --performance-schema=OFF)
        ;;
    esac
    CMD+=("$@")
}

mysql_template() { # KIND FOLDER
    local kind=$1 folder=$2
    # root over TCP: MySQL makes only root@localhost, which 127.0.0.1 is not under skip-name-resolve
    printf '%s\n' 'FLUSH PRIVILEGES;' "CREATE USER IF NOT EXISTS 'root'@'127.0.0.1' IDENTIFIED BY '';" \
        "GRANT ALL PRIVILEGES ON *.* TO 'root'@'127.0.0.1' WITH GRANT OPTION;" >"$folder/init.sql"
    chown "$(kind_user "$kind")" "$folder/init.sql"
    case $kind in
    mariadb*)
        run_in "$kind" "$folder" mariadb-install-db --no-defaults --datadir="$folder/data" \
            --auth-root-authentication-method=normal --skip-test-db --skip-name-resolve --extra-file="$folder/init.sql"
        ;;
    mysql*)
        run_in "$kind" "$folder" "$(kind_binary "$kind")" --no-defaults --initialize-insecure --datadir="$folder/data" \
            --init-file="$folder/init.sql" --mysqlx=OFF --secure-file-priv=NULL
        ;;
    esac || return 1
    rm -f "$folder/data/auto.cnf" # the server's own UUID: each copy makes its own
}

mysql_answers() { # KIND PORT DIR: a ping is also answered after a test changed root's password
    mariadb-admin --no-defaults --connect-timeout=2 -u root -S "$3/run/s" ping >/dev/null 2>&1 && listening "$2"
}
