# shellcheck shell=bash
# What each kind of server is: where it comes from, its binary, its user, its root.

kind_known() {
    case " $BASE_KINDS $NEW_KINDS " in
    *" $1 "*) ;;
    *) die "unknown kind '$1' (one of: $BASE_KINDS $NEW_KINDS)" ;;
    esac
}

kind_user() {
    case $1 in
    pg*) echo postgres ;;
    mariadb* | mysql*) echo mysql ;;
    rabbit*) echo rabbitmq ;;
    esac
}

# '' for the machine's own packages.
kind_root() { case " $BASE_KINDS " in *" $1 "*) ;; *) echo "$SERVERS_HOME/roots/$1" ;; esac; }

# The newest PostgreSQL among the machine's own packages; empty when there is none.
own_postgres_major() {
    local f
    for f in /usr/lib/postgresql/*/bin/postgres; do
        [ -x "$f" ] && basename "$(dirname "$(dirname "$f")")"
    done | sort -n | tail -1
}

# The server's binary as seen from inside its root.
kind_binary() {
    case $1 in
    pg) echo "/usr/lib/postgresql/$(own_postgres_major)/bin/postgres" ;;
    pg*) echo "/usr/lib/postgresql/${1#pg}/bin/postgres" ;;
    mariadb*) echo /usr/sbin/mariadbd ;;
    mysql*) echo /usr/sbin/mysqld ;;
    rabbit*) echo /usr/lib/rabbitmq/bin/rabbitmq-server ;;
    esac
}

kind_installed() {
    local root; root=$(kind_root "$1")
    if [ -z "$root" ]; then [ -x "$(kind_binary "$1")" ]; else [ -f "$root/.complete" ]; fi
}

# '15.18'. rabbitmq-server --version would start a broker: its folder's name tells.
kind_version() {
    local root folder; root=$(kind_root "$1")
    case $1 in
    rabbit*)
        for folder in "$root"/usr/lib/rabbitmq/lib/rabbitmq_server-*; do echo "${folder##*rabbitmq_server-}"; done | tail -1
        ;;
    *) run_in "$1" / "$(kind_binary "$1")" --version | grep -oE '[0-9]+(\.[0-9]+)+' | head -1 ;;
    esac
}

do_kinds() {
    local kind
    for kind in $BASE_KINDS $NEW_KINDS; do
        if kind_installed "$kind"; then echo "$kind $(kind_version "$kind")"; else echo "$kind -"; fi
    done
}
