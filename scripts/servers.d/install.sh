# shellcheck shell=bash
# Installs: the machine's own packages by apt-get, newer ones unpacked into private roots.

do_install() {
    local kind base=() new=()
    [ $# -gt 0 ] || set -- base
    for kind in "$@"; do
        case $kind in
        base) base+=(pg mariadb rabbit) ;;
        *)
            kind_known "$kind"
            if [ -n "$(kind_root "$kind")" ]; then new+=("$kind"); else base+=("$kind"); fi
            # the newer servers are asked whether they are up by the machine's own client
            case $kind in pg*) base+=(pg) ;; mysql* | mariadb*) base+=(mariadb) ;; esac
            ;;
        esac
    done
    command -v apt-get >/dev/null || die "knows only Debian and Ubuntu (there is no apt-get here); use docker compose instead"
    mkdir -p "$SERVERS_HOME/roots" "$SERVERS_HOME/templates" "$SERVERS_HOME/ports"
    exec 8>"$SERVERS_HOME/.lock"
    flock 8 # two installs at once wait for each other
    install_base "${base[@]}"
    [ ${#new[@]} = 0 ] && return 0
    for kind in "${new[@]}"; do install_root "$kind"; done
    rm -rf "$SERVERS_HOME/apt" # package files and lists: of no more use
}

# Prints the packages that KIND... lack on this machine.
missing_packages() {
    local kind
    for kind in "$@"; do
        kind_installed "$kind" && continue
        case $kind in
        pg) own_postgres_package ;;
        mariadb) echo mariadb-server ;;
        rabbit) echo rabbitmq-server ;;
        esac
    done
    command -v openssl >/dev/null || echo openssl
    command -v curl >/dev/null || echo curl
    command -v setpriv >/dev/null || echo util-linux
    command -v cc >/dev/null || printf '%s\n' gcc libc6-dev # what Rust links with
    command -v make >/dev/null || echo make # the allocator is built with it
}

# The versioned package, not the meta package: this release's own major.
own_postgres_package() {
    local name; name=$(apt-cache depends postgresql 2>/dev/null | grep -oE 'postgresql-[0-9]+$' | head -1)
    echo "${name:-postgresql}"
}

install_base() {
    local packages
    [ -n "$(missing_packages "$@")" ] || return 0
    apt-get update -qq || say "apt-get update failed; going on with the package lists that are here"
    mapfile -t packages < <(missing_packages "$@" | sort -u) # again: the lists now know this release's PostgreSQL
    say "will install with apt-get: ${packages[*]} (and what they depend on); their daemons will not be started"
    quiet_apt_install "${packages[@]}"
    say "installed ${packages[*]}"
}

# Debian's packages would start their daemons on the standard ports; policy-rc.d is Debian's own switch against it.
quiet_apt_install() (
    local log=$SERVERS_HOME/install.log policy=/usr/sbin/policy-rc.d
    if [ ! -e $policy ]; then
        trap 'rm -f /usr/sbin/policy-rc.d' EXIT
        trap 'exit 130' INT TERM
        printf '#!/bin/sh\nexit 101\n' >$policy
        chmod 755 $policy
    fi
    DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends "$@" \
        </dev/null >"$log" 2>&1 || { tail -20 "$log" >&2; die "apt-get install $* failed"; }
)

# ---------------------------------------------------------------- private roots

root_suite() {
    case $1 in
    pg17 | mariadb11 | rabbit40) echo trixie ;;
    pg18 | mysql9 | rabbit4) echo sid ;;
    esac
}

root_packages() {
    case $1 in
    pg*) echo "postgresql-${1#pg}" ;;
    mariadb*) echo mariadb-server-core mariadb-client-core ;;
    mysql*) echo mysql-server-core mysql-client-core ;;
    rabbit*) echo rabbitmq-server ;;
    esac
    echo libc6 libc-bin base-files dash bash coreutils sed grep mawk findutils hostname util-linux procps
}

# The mirror that this machine's own apt uses for its own release; none is written down here.
own_mirror() {
    local code
    # shellcheck disable=SC1091
    code=$(. /etc/os-release && echo "$VERSION_CODENAME")
    # shellcheck disable=SC2016
    apt-get indextargets --format '$(REPO_URI) $(CODENAME)' 'Created-By: Packages' |
        awk -v code="$code" '$2 == code && !found { print $1; found = 1 }'
}

# SUITE ARG...: apt-get with lists, cache and status of its own, and the machine's own configuration otherwise.
apt_in() {
    local d=$SERVERS_HOME/apt/$1; shift
    apt-get -o Dir::Etc::sourcelist="$d/sources.list" -o Dir::Etc::sourceparts=/dev/null \
        -o Dir::Etc::preferences=/dev/null -o Dir::Etc::preferencesparts=/dev/null \
        -o Dir::State="$d" -o Dir::State::lists="$d/lists" -o Dir::State::status="$d/status" \
        -o Dir::State::extended_states="$d/extended_states" -o Dir::Cache="$d/cache" \
        -o Dir::Log="$d" -o APT::Install-Recommends=false -o APT::Sandbox::User=root \
        -o Acquire::Languages=none -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false \
        -o APT::Update::Post-Invoke-Success::= -o Binary::apt-get::APT::Keep-Downloaded-Packages=true -qq "$@"
}

apt_lists() { # SUITE: package lists of another suite of the same mirror
    local d=$SERVERS_HOME/apt/$1 mirror keys=/usr/share/keyrings/debian-archive-keyring.gpg
    [ -e "$d/updated" ] && return 0
    # shellcheck disable=SC1091
    (. /etc/os-release && [ "$ID" = debian ]) ||
        die "the newer servers come from Debian's newer suites, and this is not Debian; use docker compose for them"
    mkdir -p "$d/lists/partial" "$d/cache/archives/partial"
    : >"$d/status"
    mirror=$(own_mirror)
    if [ -z "$mirror" ]; then apt-get update -qq; mirror=$(own_mirror); fi
    [ -n "$mirror" ] || die "cannot tell this machine's Debian mirror from its apt configuration"
    printf 'deb [signed-by=%s] %s %s main\n' "$keys" "$mirror" "$1" >"$d/sources.list"
    apt_in "$1" update
    touch "$d/updated"
}

# Unpacks (never configures) the packages of KIND and all that they depend on.
install_root() {
    local kind=$1 suite d root package file
    local -a wanted
    suite=$(root_suite "$1"); d=$SERVERS_HOME/apt/$suite; root=$SERVERS_HOME/roots/$kind
    [ -f "$root/.complete" ] && return 0
    mapfile -t wanted < <(root_packages "$kind" | tr ' ' '\n')
    say "will download ${wanted[0]} of Debian $suite and what it depends on, and unpack it into $root"
    apt_lists "$suite"
    apt_in "$suite" install -y --download-only "${wanted[@]}" >"$d/$kind.log" 2>&1 ||
        { tail -20 "$d/$kind.log" >&2; die "$kind: the download failed"; }
    rm -rf "$root.new"
    mkdir -p "$root.new"/usr/{bin,sbin,lib,lib64} "$root.new"/{proc,sys,dev,tmp,run,etc}
    for file in bin sbin lib lib64; do ln -s "usr/$file" "$root.new/$file"; done
    apt_in "$suite" install -y -s "${wanted[@]}" | awk '$1 == "Inst" { print $2 }' | sort -u >"$d/$kind.list"
    while read -r package; do
        for file in "$d/cache/archives/${package}"_*.deb; do
            dpkg-deb --fsys-tarfile "$file" | tar -C "$root.new" -x --keep-directory-symlink \
                --exclude=./usr/share/doc --exclude=./usr/share/man --exclude=./usr/share/locale --exclude=./usr/share/info
        done
    done <"$d/$kind.list"
    [ -x "$root.new$(kind_binary "$kind")" ] || die "$kind: $(kind_binary "$kind") is not in the unpacked packages"
    chroot "$root.new" /usr/sbin/ldconfig
    [ -e "$root.new/usr/bin/awk" ] || ln -s mawk "$root.new/usr/bin/awk" # an alternative that only a postinst makes
    echo "$suite, $(wc -l <"$d/$kind.list") packages" >"$root.new/.complete"
    rm -rf "$root"
    mv "$root.new" "$root"
    say "$kind: unpacked ($(cat "$root/.complete"), $(du -sm "$root" | cut -f1) MB)"
}
