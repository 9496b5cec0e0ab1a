# Sourced by the scripts: set-up of what they need, and cleanup at exit.
# shellcheck shell=bash

root_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root_dir" || exit

say() { printf '%s\n' "$*"; }
note() { printf 'note: %s\n' "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }
is_root() { [ "$(id -u)" -eq 0 ]; }

# --- Cleanup ------------------------------------------------------------------------------------

scratch=
hugepages_file=/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages
hugepages_before=
haltpoll=/sys/module/haltpoll/parameters
haltpoll_before=()

# Creates a folder for this run, removed at exit. Temporary files and DPDK's runtime folders of all
# programs started from here on lie in it too, so that leftovers of other runs elsewhere do not
# count.
make_scratch() {
    scratch=$(mktemp -d "${TMPDIR:-/tmp}/ferrowarp.XXXXXX")
    # Programs that tests run as nobody reach their files there.
    chmod 711 "$scratch"
    mkdir "$scratch/tmp" "$scratch/run"
    # DPDK prefers the latter to /var/run (systemd.exec, RuntimeDirectory=).
    export TMPDIR=$scratch/tmp RUNTIME_DIRECTORY=$scratch/run
}

# Namespaces are named fw-test-PID-N. If the process no longer exists, a kill left them behind.
remove_stale_namespaces() {
    is_root && command -v ip >/dev/null || return 0
    local name pid
    for name in $(ip netns list 2>/dev/null | awk '$1 ~ /^fw-test-[0-9]+-[0-9]+$/ {print $1}'); do
        pid=${name#fw-test-}
        [ ! -d "/proc/${pid%-*}" ] || continue
        # Its children may still run there.
        ip netns pids "$name" | xargs -r kill -KILL || true
        ip netns del "$name"
    done
}

cleanup() {
    local status=$?
    trap - EXIT INT TERM HUP
    local pid
    for pid in $(jobs -p); do
        # The whole group of a job that has one.
        kill -- "-$pid" 2>/dev/null || kill "$pid" 2>/dev/null || true
    done
    wait 2>/dev/null || true
    remove_stale_namespaces
    if [ -n "$hugepages_before" ]; then
        printf '%s' "$hugepages_before" >"$hugepages_file" || true
    fi
    local setting
    for setting in "${haltpoll_before[@]}"; do
        printf '%s' "${setting#*=}" >"$haltpoll/${setting%%=*}" || true
    done
    [ -z "$scratch" ] || rm -rf -- "$scratch"
    exit "$status"
}

# Call first: runs `cleanup` on exit and on signals.
trap_cleanup() {
    trap cleanup EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
}

# Lists the resources that a run could leave behind: namespaces, interfaces, DPDK's runtime folders,
# sockets and processes of this checkout. Those of other programs, also of another checkout that
# runs at the same time, are left out.
list_resources() {
    local exe name pid target
    target=$(realpath -m "${CARGO_TARGET_DIR:-$root_dir/target}")
    if command -v ip >/dev/null; then
        for name in $(ip netns list 2>/dev/null | awk '$1 ~ /^fw-test-[0-9]+-[0-9]+$/ {print $1}'); do
            # The name has the PID of its creator, which is of this checkout if its program is.
            pid=${name#fw-test-}
            pid=${pid%-*}
            case $(readlink "/proc/$pid/exe" 2>/dev/null || true) in
            '' | "$target"/*) say "namespace $name" ;;
            esac
        done
        # The names of interfaces of the tests and scripts begin with fw.
        ip -o link 2>/dev/null | awk -F': ' '$2 ~ /^fw/ {print "interface", $2}'
    fi
    find "${RUNTIME_DIRECTORY:?make_scratch comes first}" -mindepth 2 -maxdepth 2 \
        -printf 'folder %p\n' 2>/dev/null || true
    find "${TMPDIR:-/tmp}" -maxdepth 2 \( -name 'fw-test-*' -o -name 'memif*.sock' -o \
        -name 'ferrowarp-fresh.*' \) \
        -printf 'file %p\n' 2>/dev/null || true
    for exe in /proc/[0-9]*/exe; do
        case $(readlink "$exe" 2>/dev/null) in
        "$target"/*/iwperf | "$target"/*/iwping | "$target"/*/iwcopy)
            say "process ${exe//[!0-9]/}"
            ;;
        esac
    done
}

# Fails, and prints them, if there are resources now that are not in the file "$1".
check_leftovers() {
    local new
    new=$(comm -13 "$1" <(list_resources | sort -u))
    [ -z "$new" ] || { printf 'left behind:\n%s\n' "$new" >&2; return 1; }
}

# --- Skips --------------------------------------------------------------------------------------

# The reasons that stages and tests gave in these logs for having skipped themselves, one a line.
skips() {
    # With a single thread the test harness has printed the name of the test on the same line.
    grep -ohE '(^|\.\.\. )skipped: .*' "$@" | sed 's/^\.\.\. //' || true
}

# Complains about skips in these logs that tests/allowed-skips does not list.
only_allowed_skips() {
    local others
    others=$(skips "$@" | sort -u | grep -vxFf <(grep '^skipped: ' tests/allowed-skips) || true)
    [ -z "$others" ] || { printf 'required, but:\n%s\n' "$others" >&2; return 1; }
}

# --- Rust ---------------------------------------------------------------------------------------

# Makes a current cargo the one in PATH. If it is missing or too old, root installs the
# distribution's cargo if that is new enough. Otherwise prints the line that installs one, and exits.
need_rust() {
    local bin=${CARGO_HOME:-${HOME:-}/.cargo}/bin
    # rustup installs cargo here, and adds it to PATH only for the next login.
    [ ! -d "$bin" ] || export PATH=$bin:$PATH
    local wanted have packages=() line
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    ! has_rust "$wanted" || return 0
    # Another cargo, such as rustup's, would still come before a package's.
    case $(command -v cargo) in
    "" | /usr/bin/cargo | /bin/cargo) mapfile -t packages < <(rust_packages "$wanted") ;;
    esac
    if [ ${#packages[@]} -gt 0 ] && is_root; then
        install_packages "${packages[@]}"
        hash -r
        ! has_rust "$wanted" || return 0
    fi
    if [ ${#packages[@]} -gt 0 ]; then
        line="apt-get install ${packages[*]}"
    elif command -v rustup >/dev/null; then
        line="rustup update stable && rustup default stable"
    else
        line="curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y"
        command -v curl >/dev/null || line="apt-get update && apt-get install -y curl && $line"
    fi
    if command -v cargo >/dev/null; then
        have=$(cargo --version 2>/dev/null | awk '{print $2}')
        say "cargo ${have:-without a toolchain} is older than $wanted; this line installs a current one:"
    else
        say "cargo is absent; this line installs Rust $wanted or later:"
    fi
    say "  $line"
    exit 1
}

# True if cargo is the version "$1" or later.
has_rust() {
    local have
    have=$(cargo --version 2>/dev/null | awk '{print $2}') || return
    [ "$(printf '%s\n' "$1" "$have" | sort -V | head -n 1)" = "$1" ]
}

# Prints the packages of the distribution's Rust, if it has the version "$1" or later. Debian's
# stable releases have a later one for browsers, in packages of their own.
rust_packages() {
    local lists suffix version
    # Not both: rustc-web conflicts with rustup.
    ! command -v rustup >/dev/null || return 0
    for lists in known current; do
        # A fresh system has no lists, or no lists of updates.
        [ "$lists" = known ] || ! is_root || apt-get -q update >/dev/null 2>&1 || true
        for suffix in "" -web; do
            version=$(package_version "cargo$suffix")
            if [ -n "$version" ] && dpkg --compare-versions "$version" ge "$1"; then
                printf '%s\n' "cargo$suffix" "rustc$suffix"
                return
            fi
        done
    done
}

# Prints the package that owns cargo, if one of Rust does: Debian's rustup has a cargo too.
cargo_package() {
    dpkg-query -S "$(command -v cargo)" 2>/dev/null | sed -n 's/^\(cargo[^:]*\):.*/\1/p'
}

# Prints the line that installs rustfmt or clippy: a package if cargo is one, else by rustup. Prints
# nothing if there is no such package.
component_line() {
    local owner package
    owner=$(cargo_package) || true
    if [ -z "$owner" ]; then
        say "rustup component add $1"
        return
    fi
    package=${1/clippy/rust-clippy}${owner#cargo}
    [ -z "$(package_version "$package")" ] || say "apt-get install $package"
}

# Installs rustfmt and clippy if they are missing.
need_rust_components() {
    local component line
    for component in rustfmt clippy; do
        ! cargo "${component/rust/}" --version >/dev/null 2>&1 || continue
        line=$(component_line "$component")
        case $line in
        apt-get*) install_packages "${line##* }" ;;
        # If this fails, the stages that need it are skipped with this line.
        rustup*) $line >/dev/null 2>&1 || true ;;
        esac
    done
}

need_crates() {
    cargo fetch --locked --quiet 2>/dev/null && return
    if cargo fetch --locked --quiet --offline 2>/dev/null; then
        note "no network: the crates fetched before are used"
        export CARGO_NET_OFFLINE=true
        return
    fi
    cargo fetch --locked || true
    die "the crates of Cargo.lock cannot be fetched; is there a network?"
}

# --- Debian packages ----------------------------------------------------------------------------

has_package() { dpkg-query -W -f '${Status}' "$1" 2>/dev/null | grep -q ' installed$'; }

# Prints the version of the named package that apt would install, if it knows one.
package_version() {
    ! command -v apt-cache >/dev/null ||
        apt-cache policy "$1" 2>/dev/null | awk '/^  Candidate:/ && $2 != "(none)" {print $2}'
}

# Installs the missing ones of the named packages. A failure only prints their names.
install_packages() {
    if ! command -v dpkg-query >/dev/null; then
        note "not Debian: install the equivalents of these packages: $*"
        return
    fi
    local package absent=()
    for package in "$@"; do
        has_package "$package" || absent+=("$package")
    done
    [ ${#absent[@]} -gt 0 ] || return 0
    if ! is_root; then
        note "absent, and only root may install: apt-get install ${absent[*]}"
        return
    fi
    say "installing ${absent[*]}"
    export DEBIAN_FRONTEND=noninteractive
    local log
    log=$(mktemp)
    if ! { apt-get -q update && apt-get -q -y install --no-install-recommends "${absent[@]}"; } \
        >"$log" 2>&1; then
        grep -E '^(E|W):' "$log" >&2 || tail -n 5 "$log" >&2
        note "could not be installed (no network?): ${absent[*]}"
    fi
    rm -f -- "$log"
}

# Unpacks Open vSwitch with DPDK into the folder "$1", unless it is installed, and exports where it
# is. Installed it would start a service. Without it one test is skipped.
unpack_ovs() {
    local folder=$1 archive
    command -v apt-get >/dev/null && ! has_package openvswitch-switch-dpdk || return 0
    # Its programs need this and DPDK.
    install_packages libunbound8
    mkdir -p "$folder"
    if ! (cd "$folder" && apt-get -q download openvswitch-{common,switch,switch-dpdk}) \
        >"$folder.log" 2>&1; then
        note "Open vSwitch cannot be fetched (no network?)"
        return 0
    fi
    for archive in "$folder"/*.deb; do
        dpkg-deb -x "$archive" "$folder/root"
    done
    export FERROWARP_OVS=$folder/root
}

# shellcheck disable=SC2034  # used by those who source this file
build_packages=(libdpdk-dev libibverbs-dev librdmacm-dev libclang-dev pkg-config gcc libc6-dev
    ca-certificates)

# Verbs programs that scripts/verbs runs, and what compiles and starts others.
# shellcheck disable=SC2034  # as above
verbs_packages=(rdmacm-utils ibverbs-utils perftest gcc libc6-dev iproute2 util-linux)

# True if the crates over DPDK can be built.
has_dpdk() {
    command -v pkg-config >/dev/null && pkg-config --exists libdpdk
}

# True if the crate that stands in for libibverbs and librdmacm can be built.
has_rdma_headers() {
    command -v pkg-config >/dev/null && pkg-config --exists libibverbs librdmacm
}

# Builds the programs of bench/instructions. Those whose instructions are counted are built alone,
# as bench/Cargo.toml explains.
build_counted_programs() {
    # An incremental build is inlined otherwise, and counts up to 5 % more.
    local -x CARGO_INCREMENTAL=0
    local build=(cargo build --locked --release -p ferrowarp-bench --no-default-features)
    "${build[@]}" --features core --bin core-cost --bin instructions
    if has_dpdk; then
        "${build[@]}" --features runtime --bin verbs-cost --bin verbs-single-cost
    else
        # Those of an earlier build would run earlier code.
        rm -f "${CARGO_TARGET_DIR:-target}"/release/verbs{,-single}-cost
    fi
}

# --- Idle cores ---------------------------------------------------------------------------------

# Has idle cores poll for two seconds before they halt, where the kernel can do that; the old values
# are restored at exit. The host may wake a virtual core that has halted elsewhere, with another
# distance to the other cores.
keep_cores_awake() {
    local name
    is_root && [ -w "$haltpoll/guest_halt_poll_ns" ] || return 0
    for name in guest_halt_poll_ns guest_halt_poll_grow_start; do
        haltpoll_before+=("$name=$(cat "$haltpoll/$name")")
        printf 2000000000 >"$haltpoll/$name"
    done
}

# --- Hugepages ----------------------------------------------------------------------------------

# Reserves at least "$1" hugepages of 2 MiB, if permitted; the old number is restored at exit.
reserve_hugepages() {
    local wanted=$1 have available_mib
    if [ ! -r "$hugepages_file" ]; then
        note "this kernel has no 2 MiB hugepages; the stack runs in ordinary memory"
        return
    fi
    have=$(cat "$hugepages_file")
    [ "$have" -lt "$wanted" ] || return 0
    if ! is_root || [ ! -w "$hugepages_file" ]; then
        note "$have hugepages and no right to reserve more; the stack runs in ordinary memory"
        return
    fi
    available_mib=$(awk '/^MemAvailable:/ {print int($2 / 1024)}' /proc/meminfo)
    if [ "$available_mib" -lt $((wanted * 4)) ]; then
        note "only $available_mib MiB of memory are free: no hugepages are reserved"
        return
    fi
    hugepages_before=$have
    if ! printf '%s' "$wanted" 2>/dev/null >"$hugepages_file"; then
        hugepages_before=
        note "the kernel refuses to reserve hugepages; the stack runs in ordinary memory"
        return
    fi
    have=$(cat "$hugepages_file")
    [ "$have" -ge "$wanted" ] || note "$have of $wanted hugepages could be reserved"
}
