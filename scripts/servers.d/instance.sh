# shellcheck shell=bash
# An instance: a folder with env (what a client needs), args, pid, .lock, data and logs.

save_env() { # DIR
    {
        printf 'KIND=%s\nVERSION=%s\nPORT=%s\n' "$KIND" "$VERSION" "$PORT"
        printf 'DIST_PORT=%s\nEPMD_PORT=%s\nMGMT_PORT=%s\nTLS_PORT=%s\nNODENAME=%s\n' \
            "$DIST_PORT" "$EPMD_PORT" "$MGMT_PORT" "$TLS_PORT" "$NODENAME"
        if [ -f "$1/tls/ca.pem" ]; then echo "TLS_CA=$1/tls/ca.pem"; fi
    } >"$1/env.tmp"
    mv "$1/env.tmp" "$1/env"
}

load_env() { # DIR
    KIND='' VERSION='' PORT='' DIST_PORT='' EPMD_PORT='' MGMT_PORT='' TLS_PORT='' NODENAME=''
    # shellcheck disable=SC1091
    if [ -f "$1/env" ]; then . "$1/env"; fi
}

prepare() { case $1 in pg*) postgres_prepare "$@" ;; rabbit*) rabbit_prepare "$@" ;; *) mysql_prepare "$@" ;; esac; }
answers() { case $1 in pg*) postgres_answers "$@" ;; rabbit*) rabbit_answers "$@" ;; *) mysql_answers "$@" ;; esac; }

# KIND DIR MAKE: DIR/data as MAKE makes it in an empty folder. The first start of a version on this machine makes the
# template, the others copy it: much quicker than initdb.
copy_template() {
    local kind=$1 dir=$2 make=$3 binary template new
    binary=$(kind_root "$kind")$(kind_binary "$kind")
    template=$SERVERS_HOME/templates/$kind-$(stat -c %Y.%s "$binary")
    if [ ! -d "$template" ]; then
        new=$(mktemp -d "$SERVERS_HOME/templates/.new.XXXXXX")
        chown "$(kind_user "$kind")" "$new"
        "$make" "$kind" "$new" >>"$dir/server.log" 2>&1 ||
            { tail -20 "$dir/server.log" >&2; rm -rf "$new"; die "$kind: making the data folder failed"; }
        mv -T "$new" "$template" 2>/dev/null || rm -rf "$new" # another start was quicker
    fi
    rm -rf "$dir/data.new"
    cp -a --reflink=auto "$template/data" "$dir/data.new"
    mv "$dir/data.new" "$dir/data"
}

do_start() {
    [ $# -ge 3 ] || die "usage: start KIND PORT|auto DIR [ARG...]"
    local kind=$1 port=$2 dir=$3 began pid spawned=''; shift 3
    began=$(now_ms)
    kind_known "$kind"
    kind_installed "$kind" || die "$kind is not installed; run: scripts/servers install $kind"
    mkdir -p "$dir" "$SERVERS_HOME/templates" "$SERVERS_HOME/ports"
    dir=$(cd "$dir" && pwd -P)
    exec 9>"$dir/.lock"
    flock 9
    load_env "$dir"
    [ -z "$KIND" ] || [ "$KIND" = "$kind" ] || die "$dir holds a $KIND"
    if [ "$port" = auto ]; then port=${PORT:-$(free_port "$dir")}; fi
    if ! [[ $port =~ ^[0-9]+$ ]] || [ "$port" -lt 1024 ] || [ "$port" -gt 65535 ]; then die "bad port '$port'"; fi
    standard_port "$port" && die "$port is a standard port; private instances keep off it"
    if pid=$(alive "$dir/pid"); then
        [ "$PORT" = "$port" ] || die "$dir runs on port $PORT already"
    else
        launch "$kind" "$port" "$dir" "$@"
        spawned=1
    fi
    until answers "$kind" "$port" "$dir"; do
        if ! alive "$dir/pid" >/dev/null; then
            [ -n "$spawned" ] || { launch "$kind" "$port" "$dir" "$@"; spawned=1; continue; } # it was just going down
            tail -n 20 "$dir/server.log" "$dir/error.log" >&2 2>/dev/null || true
            stop_epmd "$dir"
            die "$kind on port $port died at its start; its logs are in $dir"
        fi
        [ $(($(now_ms) - began)) -lt $((SERVERS_WAIT * 1000)) ] ||
            die "$kind on port $port does not answer after $SERVERS_WAIT s; its logs are in $dir"
        sleep 0.05
    done
    echo "$kind $VERSION port=$port pid=$(alive "$dir/pid" || true) ready_ms=$(($(now_ms) - began)) dir=$dir"
}

launch() { # KIND PORT DIR ARG...
    local kind=$1 port=$2 dir=$3 user CMD=() ENVIRON=(); shift 3
    listening "$port" && die "port $port is taken"
    user=$(kind_user "$kind")
    id "$user" >/dev/null 2>&1 || make_user "$user"
    mkdir -p "$dir/run" "$dir/log" "$dir/tmp"
    chown "$user" "$dir" "$dir/run" "$dir/log" "$dir/tmp"
    run_as "$user" test -w "$dir/run" ||
        die "user $user cannot reach $dir: a folder above it is closed to others (a temporary folder of mode 700?)"
    settle "$dir"
    if [ $# = 0 ] && [ -f "$dir/args" ]; then mapfile -d '' -t CMD <"$dir/args"; set -- "${CMD[@]}"; fi
    printf '%s\0' "$@" >"$dir/args"
    [ $# -gt 0 ] || : >"$dir/args"
    prepare "$kind" "$port" "$dir" "$@"
    KIND=$kind PORT=$port VERSION=${VERSION:-$(kind_version "$kind")}
    save_env "$dir"
    chown -R "$user" "$dir"
    spawn "$dir/pid" "$dir/server.log" "$kind" "$dir" "${CMD[@]}" ||
        { tail -20 "$dir/server.log" >&2; die "$kind did not start"; }
}

run_as() { local user=$1; shift; setpriv --reuid="$(id -u "$user")" --regid="$(id -g "$user")" --clear-groups "$@"; }

# DIR: after a crash, waits for orphans (backends outlive a killed postmaster), then drops the stale lock files that
# the next start would otherwise take for those of a living server.
settle() {
    local process
    for _ in {1..400}; do
        for process in /proc/[0-9]*; do
            if [ -d "$1/data" ] && [ "$process/cwd" -ef "$1/data" ]; then sleep 0.05; continue 2; fi
        done
        rm -f "$1/data/postmaster.pid" "$1/run/s" "$1/run/s.lock" "$1/run/mysqld.pid"
        return 0
    done
    die "process ${process#/proc/} still runs in $1/data"
}

stop_epmd() {
    local pid
    if pid=$(alive "$1/epmd.pid"); then kill -TERM "$pid" 2>/dev/null || true; fi
    rm -f "$1/epmd.pid"
}

kill_tree() { # PID
    local all p; all=$(descendants "$1")
    # shellcheck disable=SC2086
    kill -KILL $all 2>/dev/null || true
    for p in $all; do while [ -n "$(start_time "$p")" ]; do sleep 0.02; done; done
}

do_stop() {
    [ $# -ge 1 ] || die "usage: stop DIR [fast|kill]"
    local dir=$1 how=${2:-fast} pid signal=TERM began slow=''
    [ -d "$dir" ] || { say "no such folder: $dir"; return 0; }
    case $how in fast | kill) ;; *) die "usage: stop DIR [fast|kill]" ;; esac
    dir=$(cd "$dir" && pwd -P)
    began=$(now_ms)
    exec 9>"$dir/.lock"
    flock 9
    load_env "$dir"
    if pid=$(alive "$dir/pid"); then
        case $KIND in pg*) signal=INT ;; esac # PostgreSQL's fast shutdown
        if [ "$how" = fast ]; then
            kill -"$signal" "$pid" 2>/dev/null || true
            while alive "$dir/pid" >/dev/null; do
                if [ $(($(now_ms) - began)) -ge 60000 ]; then slow=1; break; fi
                sleep 0.05
            done
        fi
        if [ "$how" = kill ] || [ -n "$slow" ]; then kill_tree "$pid"; fi
    fi
    rm -f "$dir/pid"
    stop_epmd "$dir"
    [ -z "$slow" ] || die "$KIND in $dir did not stop in 60 s; killed it"
    echo "${KIND:-?} stopped ($how) ms=$(($(now_ms) - began))"
}

do_remove() {
    [ -d "$1" ] || return 0
    local dir; dir=$(cd "$1" && pwd -P)
    [ -f "$dir/.lock" ] || die "$dir is not an instance's folder"
    do_stop "$dir" kill >/dev/null
    settle "$dir"
    release_ports "$dir"
    rm -rf "$dir"
}

do_env() {
    local dir; dir=$(cd "$1" && pwd -P)
    cat "$dir/env"
    echo "PID=$(alive "$dir/pid" || true)"
}

do_exec() {
    local dir ENVIRON=(env); dir=$(cd "$1" && pwd -P); shift
    load_env "$dir"
    case $KIND in
    pg*) ENVIRON=(env "PATH=$(dirname "$(kind_binary "$KIND")"):$PATH" "PGHOST=127.0.0.1" "PGPORT=$PORT" PGUSER=postgres "PGDATA=$dir/data") ;;
    rabbit*) rabbit_environment "$dir" ;;
    esac
    cd "$dir" || exit
    enter "$KIND" "$dir" "${ENVIRON[@]}" "$@"
}
