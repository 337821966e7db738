# shellcheck shell=bash
# Ports, below the range that outgoing connections take theirs from, so that a server that is down finds its own again.

# PORT: does anyone listen on it (IPv4 or IPv6)?
listening() {
    local hex; hex=$(printf ':%04X' "$1")
    awk -v h="$hex" '$4 == "0A" && substr($2, length($2) - 4) == h { found = 1 } END { exit !found }' \
        /proc/net/tcp /proc/net/tcp6 2>/dev/null
}

# DIR: prints a port that nobody listens on, reserved for DIR as long as DIR exists.
free_port() {
    local port link
    for _ in {1..500}; do
        port=$((20000 + (RANDOM * 32768 + RANDOM) % 12000))
        [ "$port" != 25672 ] || continue # RabbitMQ's usual distribution port
        link=$SERVERS_HOME/ports/$port
        if [ -L "$link" ] && [ ! -e "$link" ]; then rm -f "$link"; fi # its folder is gone
        ln -s "$1" "$link" 2>/dev/null || continue # atomic: two starts at once never get the same
        if listening "$port"; then rm -f "$link"; continue; fi
        echo "$port"
        return 0
    done
    die "found no free port"
}

release_ports() { # DIR
    local link
    for link in "$SERVERS_HOME"/ports/*; do
        if [ -L "$link" ] && [ "$(readlink "$link")" = "$1" ]; then rm -f "$link"; fi
    done
}

standard_port() { case $1 in 5432 | 3306 | 33060 | 5671 | 5672 | 15671 | 15672 | 4369) ;; *) return 1 ;; esac; }

# DIR CN: a private authority and a certificate for localhost and 127.0.0.1, once, in DIR/tls.
make_certificates() {
    local d=$1/tls
    [ -f "$d/server.pem" ] && return 0
    mkdir -p "$d"
    {
        openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 \
            -subj '/CN=tailpost test authority' -keyout "$d/ca.key" -out "$d/ca.pem"
        openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=localhost \
            -keyout "$d/server.key" -out "$d/server.csr"
        openssl x509 -req -in "$d/server.csr" -CA "$d/ca.pem" -CAkey "$d/ca.key" -CAcreateserial -days 3650 \
            -out "$d/server.pem" -extfile <(printf '%s\n' 'subjectAltName=DNS:localhost,IP:127.0.0.1' \
                'extendedKeyUsage=serverAuth' 'basicConstraints=CA:FALSE')
    } 2>"$d/openssl.log" || { cat "$d/openssl.log" >&2; die "openssl failed"; }
    chmod 600 "$d"/*.key
}
