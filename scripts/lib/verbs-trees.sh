# Sourced by scripts/verbs, after setup.sh: the same libraries with the programs of several releases
# of Debian, each in a clean tree with its own loader and C library.
# shellcheck shell=bash
# shellcheck disable=SC2154  # root_dir and scratch are those of setup.sh, target that of scripts/verbs

# shellcheck source=scripts/lib/mirror.sh
. "$root_dir/scripts/lib/mirror.sh"

tree_packages=rdmacm-utils,ibverbs-utils,perftest,libnuma1

# Runs the checks in each of the named releases, by default all.
run_trees() {
    local release failed=0
    is_root || die "only root may make a tree of another release"
    install_packages debootstrap debian-archive-keyring
    [ $# -gt 0 ] || set -- bookworm trixie forky
    for release in "$@"; do
        tree=$target/verbs-trees/$release
        make_tree "$release" || { failed=1; continue; }
        install -D -t "$tree/opt/ferrowarp/bin" "$target/release/iwarp-run" \
            "$root_dir/scripts/lib/verbs-tree-checks"
        rm -rf -- "$tree/opt/ferrowarp/lib"
        mkdir -p "$tree/opt/ferrowarp/lib"
        cp -a "$target/release/lib/ferrowarp" "$tree/opt/ferrowarp/lib/"
        unshare --mount --pid --fork --kill-child --mount-proc \
            "$root_dir/scripts/lib/enter-tree" "$(realpath "$tree")" / \
            /opt/ferrowarp/bin/verbs-tree-checks "$release" || failed=1
    done
    return "$failed"
}

# Makes the tree of a release, unless an earlier run has.
make_tree() {
    local release=$1 mirror script=$1
    [ ! -e "$tree.ready" ] || return 0
    mirror=$(find_mirror "$release")
    [ -n "$mirror" ] || { say "FAILED $release: no mirror of this machine's apt has it"; return 1; }
    [ -e "/usr/share/debootstrap/scripts/$release" ] || script=sid
    rm -rf -- "$tree"
    mkdir -p "$tree"
    say "== debootstrap $release"
    debootstrap --variant=minbase --include="$tree_packages" "$release" "$tree" "$mirror" \
        "$script" >"$scratch/debootstrap" 2>&1 || {
        tail -n 20 "$scratch/debootstrap"
        say "FAILED $release: debootstrap"
        return 1
    }
    touch "$tree.ready"
}
