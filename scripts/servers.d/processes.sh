# shellcheck shell=bash
# Processes: whether they live, what belongs to them, and how one gets into its root.
#
# A killed server can stay a zombie for long where process 1 is slow to reap, and kill(pid, 0) still finds it. So life
# is judged by the start time that /proc shows, never by the number alone.

# PID: its start time in ticks, empty when it is gone. A zombie whose threads still run is not gone: they hold its port.
start_time() {
    local stat pid=$1
    stat=$(cat "/proc/$pid/stat" 2>/dev/null) || return 0
    stat=${stat##*) } # the name before it may hold anything
    # shellcheck disable=SC2086
    set -- $stat
    case $1 in
    Z)
        local started=${20}
        set -- /proc/"$pid"/task/*
        [ $# -le 1 ] || echo "$started"
        ;;
    X) ;;
    *) echo "${20}" ;;
    esac
}

# FILE that holds "PID START": prints the pid when that very process still runs.
alive() {
    local pid started
    [ -f "$1" ] && read -r pid started <"$1" || return 1
    [ -n "$pid" ] && [ -n "$started" ] && [ "$(start_time "$pid")" = "$started" ] && echo "$pid"
}

remember() { # FILE PID
    local started; started=$(start_time "$2")
    [ -n "$started" ] || return 1
    echo "$2 $started" >"$1.tmp"
    mv "$1.tmp" "$1"
}

# PID: it and all its descendants, one a line (by /proc: a bare machine has no ps).
descendants() {
    local file stat rest
    for file in /proc/[0-9]*/stat; do
        { read -r stat <"$file"; } 2>/dev/null || continue
        rest=${stat##*) }; rest=${rest#* }
        echo "${stat%% *} ${rest%% *}"
    done | awk -v root="$1" '
        { parent[$1] = $2 }
        END { for (p in parent) { q = p; while (q > 1 && q != root) q = parent[q]; if (q == root) print p } }'
}

# KIND DIR CMD...: replaces this shell by CMD as the kind's user in its root. The pid stays the same all the way.
enter() {
    local kind=$1 dir=$2 root user uid gid; shift 2
    root=$(kind_root "$kind"); user=$(kind_user "$kind")
    id "$user" >/dev/null 2>&1 || make_user "$user"
    uid=$(id -u "$user"); gid=$(id -g "$user")
    if [ -z "$root" ]; then
        exec ${SETSID:+setsid} setpriv --reuid="$uid" --regid="$gid" --clear-groups -- "$@"
    fi
    # A private mount namespace: the mounts vanish with the process, and nobody else sees them.
    # shellcheck disable=SC2016
    exec ${SETSID:+setsid} unshare -m bash -c '
        set -e; root=$1 dir=$2 ids=$3; shift 3
        for d in proc dev sys tmp; do mount --rbind /$d $root/$d; done
        for f in passwd group hosts resolv.conf; do
            [ -e $root/etc/$f ] || : >$root/etc/$f
            mount --bind /etc/$f $root/etc/$f
        done
        case $dir in / | /tmp/*) ;; *) mkdir -p $root$dir; mount --bind $dir $root$dir ;; esac
        exec chroot --userspec=$ids --groups= $root "$@"' enter "$root" "$dir" "+$uid:+$gid" "$@"
}
run_in() { local kind=$1 dir=$2; shift 2; (cd "$dir" && enter "$kind" "$dir" "$@"); }

# Packages that are only unpacked made no user.
make_user() { useradd --system --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin "$1"; }

# PIDFILE LOG KIND DIR CMD...: starts CMD detached from this shell, its terminal, its session and its locks.
spawn() {
    local pidfile=$1 log=$2 kind=$3 dir=$4 files; shift 4
    (
        exec </dev/null >>"$log" 2>&1 8>&- 9>&-
        cd "$dir" || exit
        ulimit -c 0
        files=$(ulimit -Hn)
        if [ "$files" = unlimited ] || [ "$files" -gt 65536 ]; then files=65536; fi # Erlang allocates by this number
        ulimit -Sn "$files"
        SETSID=1 enter "$kind" "$dir" "$@"
    ) &
    remember "$pidfile" $!
}
