#!/usr/bin/env bash
# The checks, one stage at a time: scripts/ci.sh STAGE. scripts/test runs these:
#
#   fmt      formatting
#   shell    syntax of the scripts, and shellcheck where it is installed
#   clippy   lints, warnings denied
#   tidy     style, structure, traceability of rules, licenses of dependencies
#   test     unit and integration tests of every package, with overflow checks; devices and the
#            programs among them (root for all of it)
#   static   the runtime's tests over memif and vhost, with DPDK's archives linked into them
#   doc      documentation, warnings denied; the libraries also as docs.rs builds them, without
#            libdpdk
#   interop  the stack against Linux's siw in a guest, and over emulated cards: the small matrix
#            (root and QEMU)
#   verbs    unmodified verbs programs on the stack: the small matrix of scripts/verbs (root)
#   counts   instructions and lines of state against bench/instructions.tsv (valgrind; without
#            libdpdk the protocol core alone)
#   loom     every order of the threads that share stack/lockfree (loom); needs no libdpdk
#   sanitize AddressSanitizer over the runtime's tests over `ring`, ThreadSanitizer over a part of the
#            simulation, over misdelivered flows and the lock-free modules
#   fuzz     the fuzz targets, FERROWARP_FUZZ_SECONDS (5) each
#
# .ci/run runs one more after them:
#
#   fresh    `smoke` on a fresh Debian 13: scripts/fresh trixie --quick (root, debootstrap, network)
#
# And these are parts of `test`, the first two for daily work:
#
#   quick    lints and tests of what needs only the protocol crate
#   device   tests of the stack over tap and memif, and of the programs
#   smoke    tests of the runtime and the bindings over `ring` and memif, and a transfer over tap
#
# And one for changes in stack/lockfree:
#
#   miri     its unit tests under miri, where a nightly toolchain has it; needs no libdpdk
#
# Exit status: 0 passed, 77 skipped with a reason, anything else failed. Without libdpdk the
# stages cover the packages that do not need it.
set -euo pipefail
# shellcheck source=scripts/lib/setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib/setup.sh"
need_rust

skip() { say "skipped: $*"; exit 77; }

cargo_flags=(--locked)
# The same packages and features in every stage, so that stages share their builds.
if has_dpdk; then
    packages=(--workspace --features ferrowarp-tests/device)
    if ! has_rdma_headers; then
        packages+=(--exclude ferrowarp-verbs)
        note "libibverbs-dev or librdmacm-dev is absent: ferrowarp-verbs is not checked"
    fi
else
    packages=()
    note "libdpdk is absent: only the packages that do not need it are checked"
fi

need_component() {
    local line
    ! cargo "${1/rust/}" --version >/dev/null 2>&1 || return 0
    line=$(component_line "$1")
    [ -z "$line" ] || skip "no $1; $line"
    skip "packaged Rust has no $1; install Rust with rustup"
}

host_triple() { rustc -vV | sed -n 's/^host: //p'; }

# Root can make all that the tests need, if these programs are installed: then what is missing fails
# them.
require_device() {
    is_root || { note "not root: what needs a network namespace is skipped"; return; }
    has_dpdk || return 0
    local program
    for program in ip tcpdump tshark valgrind; do
        command -v "$program" >/dev/null ||
            { note "$program is not installed: tests that need it are skipped"; return; }
    done
    export FERROWARP_REQUIRE_DEVICE=1
}

# Tests with devices wait for timers and for other programs more than they compute; of loom's tests
# the last in the order of names takes longest, and begins with the others.
more_test_threads() { export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((3 * $(nproc)))}; }

case ${1-} in
fmt)
    need_component rustfmt
    cargo fmt --all --check
    cargo fmt --manifest-path tests/fuzz/Cargo.toml --check
    ;;
shell)
    mapfile -t scripts < <(find scripts .ci stack/verbs/link -type f | sort)
    for script in "${scripts[@]}"; do
        bash -n "$script"
    done
    if command -v shellcheck >/dev/null; then
        shellcheck -x "${scripts[@]}"
    fi
    ;;
clippy)
    need_component clippy
    cargo clippy "${cargo_flags[@]}" "${packages[@]}" --all-targets -- -D warnings
    ;;
tidy)
    cargo test "${cargo_flags[@]}" "${packages[@]}" --test repo
    ;;
test)
    require_device
    more_test_threads
    cargo test "${cargo_flags[@]}" "${packages[@]}" --no-fail-fast
    ;;
static)
    has_dpdk || skip "no libdpdk; apt-get install libdpdk-dev"
    # The features match those of the other stages, so that other crates are built once.
    cargo test "${cargo_flags[@]}" -p ferrowarp --features static,tokio --lib -- \
        memif vhost virtio
    ;;
doc)
    RUSTDOCFLAGS="-D warnings" cargo doc "${cargo_flags[@]}" "${packages[@]}" --no-deps
    # As docs.rs does, which lacks these programs and libraries.
    DOCS_RS=1 PKG_CONFIG=absent CC=absent LIBCLANG_PATH=absent RUSTDOCFLAGS="-D warnings" \
        cargo doc "${cargo_flags[@]}" -p ferrowarp-dpdk-sys -p ferrowarp --features ferrowarp/tokio \
        --no-deps --target "$(host_triple)"
    ;;
device)
    has_dpdk || skip "no libdpdk; apt-get install libdpdk-dev"
    require_device
    # With both, or the programs that `device` starts are not built.
    cargo test "${cargo_flags[@]}" "${packages[@]}" --test device --test programs --no-run
    cargo build "${cargo_flags[@]}" "${packages[@]}" --profile test --examples
    cargo test "${cargo_flags[@]}" "${packages[@]}" --no-fail-fast --test device
    # The tests of `programs` that start programs, and those of `engine` that need a namespace.
    cargo test "${cargo_flags[@]}" "${packages[@]}" --test programs -- commands::
    cargo test "${cargo_flags[@]}" "${packages[@]}" --test engine -- reference_peer::
    ;;
smoke)
    has_dpdk || skip "no libdpdk; apt-get install libdpdk-dev"
    ! is_root || ! command -v ip >/dev/null || export FERROWARP_REQUIRE_DEVICE=1
    # The same packages each time, so that nothing is built twice.
    smoke=("${cargo_flags[@]}" --features ferrowarp-tests/device)
    for package in ferrowarp-dpdk-sys ferrowarp ferrowarp-apps ferrowarp-tests; do
        smoke+=(-p "$package")
    done
    cargo test "${smoke[@]}" --lib --test api --test device --test programs --no-run
    cargo build "${smoke[@]}" --profile test --example host_stack
    # A name that matches no test is a mistake here.
    only_named() {
        local listed
        listed=$(cargo test --quiet "${smoke[@]}" --test "$1" -- --list "${@:2}")
        grep -q ': test$' <<<"$listed" || die "no test of $1 matches ${*:2}"
        cargo test "${smoke[@]}" --test "$1" -- "${@:2}"
    }
    status=0
    cargo test "${smoke[@]}" --no-fail-fast --lib --test api || status=1
    only_named device memif || status=1
    only_named programs memif || status=1
    only_named device --exact tap::stack_accepts_the_kernel_peer || status=1
    exit "$status"
    ;;
fresh)
    exec scripts/fresh trixie --quick
    ;;
interop)
    has_dpdk || skip "no libdpdk; apt-get install libdpdk-dev"
    is_root || skip "not root, and only root may make a network namespace"
    command -v qemu-system-x86_64 >/dev/null || skip "no QEMU; apt-get install qemu-system-x86"
    [ -c /dev/net/tun ] || skip "no /dev/net/tun: this kernel has no tap interfaces"
    status=0
    scripts/siw-guest --build >/dev/null || status=$?
    [ "$status" -ne 77 ] || skip "no guest: what it needs is absent and could not be installed"
    [ "$status" -eq 0 ] || exit "$status"
    scripts/interop --quick
    ;;
verbs)
    has_dpdk || skip "no libdpdk; apt-get install libdpdk-dev"
    is_root || skip "not root, and only root may start programs as another user"
    for program in rping ibv_devinfo ib_write_bw; do
        command -v "$program" >/dev/null ||
            skip "no $program; apt-get install rdmacm-utils ibverbs-utils perftest"
    done
    scripts/verbs --quick
    ;;
counts)
    command -v valgrind >/dev/null || skip "no valgrind; apt-get install valgrind"
    bench/instructions --check bench/instructions.tsv
    ;;
loom)
    more_test_threads
    RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/loom \
        cargo test "${cargo_flags[@]}" -p ferrowarp-lockfree
    ;;
miri)
    cargo +nightly miri --version >/dev/null 2>&1 ||
        skip "no nightly toolchain with miri; rustup toolchain install nightly -c miri -c rust-src"
    # Time passes: the spin lock's back-off reads the clock.
    MIRIFLAGS="-Zmiri-disable-isolation ${MIRIFLAGS-}" \
        CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/miri \
        cargo +nightly miri test "${cargo_flags[@]}" -p ferrowarp-lockfree --lib
    ;;
sanitize)
    more_test_threads
    for kind in address thread; do
        scripts/sanitize "$kind" --short
    done
    ;;
fuzz)
    command -v c++ >/dev/null || skip "no C++ compiler; apt-get install g++"
    host=$(host_triple)
    # Coverage for libFuzzer as cargo-fuzz asks for it, without the sanitizers that need nightly.
    flags="--cfg fuzzing -Cpasses=sancov-module"
    for flag in level=4 inline-8bit-counters pc-table; do
        flags+=" -Cllvm-args=-sanitizer-coverage-$flag"
    done
    target_dir=$(mkdir -p "${CARGO_TARGET_DIR:-target}/fuzz" && cd "$_" && pwd)
    # Its lock file follows that of the workspace, so no --locked.
    RUSTFLAGS=$flags CARGO_TARGET_DIR=$target_dir cargo build --target "$host" \
        --manifest-path tests/fuzz/Cargo.toml
    # Failing inputs are written to the working directory, and printed in base64.
    fuzz_target() {
        if "./$1" -verbosity=0 -max_len=1500 -max_total_time="${FERROWARP_FUZZ_SECONDS:-5}" \
            >"$1.log" 2>&1; then
            echo "$1: passed"
        else
            cat "$1.log"
            echo "$1: failed"
            return 1
        fi
    }
    export -f fuzz_target
    targets=$(find tests/fuzz/fuzz_targets -name '*.rs' -exec basename {} .rs \; | sort)
    cd "$target_dir/$host/debug"
    xargs -P "$(nproc)" -I{} bash -c 'fuzz_target {}' <<<"$targets"
    ;;
quick)
    quick=("${cargo_flags[@]}" -p ferrowarp-crc32c -p ferrowarp-proto -p ferrowarp-tests)
    if cargo clippy --version >/dev/null 2>&1; then
        cargo clippy "${quick[@]}" --all-targets -- -D warnings
    else
        note "no clippy: the code is not linted"
    fi
    cargo test "${quick[@]}" --no-fail-fast --lib --test repo --test engine --test traces
    ;;
*)
    sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2
    exit 2
    ;;
esac
