# shellcheck shell=bash
# RabbitMQ. Each instance has its own node name, port mapper (epmd), distribution port and folders.

# The environment of the server and of its command line tools, in ENVIRON. Takes what load_env read.
rabbit_environment() { # DIR
    local dir=$1
    ENVIRON=(env -i PATH=/usr/lib/rabbitmq/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 LC_ALL=C.UTF-8
        HOME="$dir" TMPDIR="$dir/tmp" RABBITMQ_NODENAME="$NODENAME" RABBITMQ_CONF_ENV_FILE="$dir/rabbitmq-env.conf"
        RABBITMQ_CONFIG_FILE="$dir/rabbitmq.conf" RABBITMQ_ADVANCED_CONFIG_FILE="$dir/advanced.config"
        RABBITMQ_MNESIA_BASE="$dir/data" RABBITMQ_LOG_BASE="$dir/log" RABBITMQ_ENABLED_PLUGINS_FILE="$dir/enabled_plugins"
        RABBITMQ_GENERATED_CONFIG_DIR="$dir/generated" RABBITMQ_PID_FILE="$dir/run/rabbit.pid"
        RABBITMQ_DIST_PORT="$DIST_PORT" ERL_EPMD_PORT="$EPMD_PORT" ERL_EPMD_ADDRESS=127.0.0.1
        RABBITMQ_CTL_DIST_PORT_MIN=32000 RABBITMQ_CTL_DIST_PORT_MAX=32700 ERL_CRASH_DUMP_SECONDS=0
        RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS='-kernel inet_dist_use_interface {127,0,0,1}'
        RUNNING_UNDER_SYSTEMD=1) # the Erlang machine replaces the shell: one pid
}

rabbit_prepare() { # KIND PORT DIR ARG...
    local kind=$1 port=$2 dir=$3 mgmt='' tls='' extra=(); shift 3
    while [ $# -gt 0 ]; do
        case $1 in
        --mgmt) mgmt=1; shift ;;
        --tls) tls=1; shift ;;
        --conf) extra+=("$2"); shift 2 ;;
        *) die "rabbit: unknown argument '$1' (--mgmt, --tls, --conf 'key = value')" ;;
        esac
    done
    rabbit_ports "$port" "$dir" "$mgmt" "$tls"
    rabbit_config "$port" "$dir" "${extra[@]}"
    mkdir -p "$dir/generated"
    rabbit_epmd "$kind" "$dir"
    rabbit_environment "$dir"
    # shellcheck disable=SC2034
    CMD=("${ENVIRON[@]}" /usr/lib/rabbitmq/bin/rabbitmq-server)
}

# Keeps the ports of an earlier start: clients and command line tools know them.
rabbit_ports() { # PORT DIR MGMT TLS
    load_env "$2"
    [ -n "$DIST_PORT" ] || DIST_PORT=$(free_port "$2")
    [ -n "$EPMD_PORT" ] || EPMD_PORT=$(free_port "$2")
    if [ -z "$3" ]; then MGMT_PORT=''; else MGMT_PORT=${MGMT_PORT:-$(free_port "$2")}; fi
    if [ -z "$4" ]; then TLS_PORT=''; else TLS_PORT=${TLS_PORT:-$(free_port "$2")}; fi
    NODENAME="tailpost$1@localhost"
}

rabbit_config() { # PORT DIR LINE...
    local port=$1 dir=$2 plugins=''; shift 2
    {
        echo "listeners.tcp.1 = 127.0.0.1:$port"
        echo "log.file.level = info"
        echo "vm_memory_high_watermark.absolute = 1GB" # the default is a share of the machine, for each instance
        echo "disk_free_limit.absolute = 50MB"
        if [ -n "$MGMT_PORT" ]; then
            plugins=rabbitmq_management
            printf 'management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = %s\n' "$MGMT_PORT"
        fi
        if [ -n "$TLS_PORT" ]; then
            make_certificates "$dir"
            echo "listeners.ssl.1 = 127.0.0.1:$TLS_PORT"
            printf 'ssl_options.cacertfile = %s\nssl_options.certfile = %s\nssl_options.keyfile = %s\n' \
                "$dir/tls/ca.pem" "$dir/tls/server.pem" "$dir/tls/server.key"
            printf 'ssl_options.verify = verify_peer\nssl_options.fail_if_no_peer_cert = false\n'
        fi
        printf '%s\n' "$@"
    } >"$dir/rabbitmq.conf"
    echo "[$plugins]." >"$dir/enabled_plugins"
    : >"$dir/rabbitmq-env.conf"
    [ -f "$dir/advanced.config" ] || echo '[].' >"$dir/advanced.config"
}

rabbit_epmd() { # KIND DIR
    alive "$2/epmd.pid" >/dev/null && return 0
    chown "$(kind_user "$1")" "$2"
    spawn "$2/epmd.pid" "$2/epmd.log" "$1" "$2" epmd -port "$EPMD_PORT" -address 127.0.0.1 || true
    for _ in {1..200}; do
        listening "$EPMD_PORT" && return 0
        sleep 0.05
    done
    tail "$2/epmd.log" >&2
    die "RabbitMQ's port mapper does not answer on $EPMD_PORT"
}

# The AMQP greeting is answered with a method frame, and the HTTP API answers where it is on.
rabbit_answers() { # KIND PORT DIR
    local byte
    listening "$2" || return 1
    # shellcheck disable=SC2016
    byte=$(timeout 2 bash -c 'exec 3<>"/dev/tcp/127.0.0.1/$1"; printf "AMQP\0\0\11\1" >&3; head -c1 <&3 | od -An -tu1' _ "$2" \
        2>/dev/null) || return 1
    [ "${byte// /}" = 1 ] || return 1
    load_env "$3"
    if [ -n "$TLS_PORT" ]; then listening "$TLS_PORT" || return 1; fi
    [ -z "$MGMT_PORT" ] || curl -sf -m 2 -u guest:guest -o /dev/null "http://127.0.0.1:$MGMT_PORT/api/vhosts"
}
