# Sourced by the scripts of guests: their kernel and initramfs, built once and cached.
# shellcheck shell=bash
# shellcheck disable=SC2154  # root_dir and scratch are those of setup.sh, which is sourced first

guest_cache=${XDG_CACHE_HOME:-${HOME:-$scratch}/.cache}/ferrowarp/guest
guest_fragment=$root_dir/tests/interop/kernel.fragment
# An earlier build of the kernel, next to the checkout.
guest_shared=$root_dir/../shared/nic-guest/bzImage

# Programs of the guest, from the host's packages. Its basic tools are busybox.
guest_programs=(dash ip tc rdma rping ucmatose rdma_server rdma_client ibv_devices ibv_devinfo
    ib_write_bw ib_read_bw ib_send_bw ib_write_lat ib_read_lat ib_send_lat)

guest_packages=(qemu-system-x86 busybox-static cpio gzip util-linux iproute2 tcpdump rdmacm-utils
    ibverbs-utils ibverbs-providers perftest gcc binutils libc6-dev libibverbs-dev librdmacm-dev)
guest_kernel_packages=(linux-source-6.12 xz-utils make gcc libc6-dev bc bison flex libelf-dev)

# Exit status if a package is absent and could not be installed: a skip, not a failure.
guest_absent=77

# Prints which of the named programs are absent; fails if any is.
guest_need() {
    local program absent=()
    for program in "$@"; do
        command -v "$program" >/dev/null || absent+=("$program")
    done
    [ ${#absent[@]} -gt 0 ] || return 0
    say "error: absent: ${absent[*]}; this line installs what the guest needs:" >&2
    say "  apt-get install ${guest_packages[*]}" >&2
    return "$guest_absent"
}

# DPDK's drivers for the emulated cards, and what these need.
guest_drivers=(bus_pci bus_vdev mempool_ring net_virtio net_e1000 net_vmxnet3)

# Prints the paths of the plug-ins of DPDK for the emulated cards.
guest_driver_files() {
    local folder name
    folder=$(pkg-config --variable=libdir libdpdk) || return
    for name in "${guest_drivers[@]}"; do
        realpath -e "$(guest_one_of "$folder"/dpdk/pmds-*/"librte_$name.so")" || return
    done
}

# Prints the path of the kernel; builds it if there is none.
guest_kernel() {
    # The second is the name of before there were two guests.
    local built kernel=${FERROWARP_GUEST_KERNEL-${FERROWARP_SIW_KERNEL-}}
    if [ -n "$kernel" ]; then
        [ -r "$kernel" ] || die "FERROWARP_GUEST_KERNEL: cannot read $kernel"
        printf '%s\n' "$kernel"
        return
    fi
    built=$guest_cache/bzImage-$(sha256sum <"$guest_fragment" | cut -c 1-16)
    if [ ! -s "$built" ]; then
        if [ -s "$guest_shared" ]; then
            realpath "$guest_shared"
            return
        fi
        guest_build_kernel "$built" >&2 || return
    fi
    printf '%s\n' "$built"
}

# Builds the kernel from Debian's sources into the file "$1".
guest_build_kernel() {
    local out=$1 source work log=$guest_cache/build.log
    mkdir -p "$guest_cache"
    exec 9>"$guest_cache/lock"
    flock 9
    # Another run may have built it meanwhile.
    [ ! -s "$out" ] || return 0
    # A later release has only a later kernel.
    [ -n "$(package_version "${guest_kernel_packages[0]}")" ] || guest_kernel_packages[0]=linux-source
    install_packages "${guest_kernel_packages[@]}"
    source=$(find /usr/src -maxdepth 1 -name 'linux-source-*.tar.xz' | sort -V | tail -n 1)
    if [ -z "$source" ] || ! guest_has make gcc bc bison flex xz; then
        say "error: Debian's kernels lack siw, so one is built, once; this installs the packages"
        say "for that (or set FERROWARP_GUEST_KERNEL to a bzImage with siw and vfio):"
        say "  apt-get install ${guest_kernel_packages[*]}"
        return "$guest_absent"
    fi
    say "building a kernel with siw and vfio from $source, once: 5 to 10 minutes; log: $log"
    work=$scratch/linux
    mkdir "$work"
    if ! (
        set -e
        tar -xf "$source" -C "$work" --strip-components=1
        cd "$work"
        make tinyconfig
        scripts/kconfig/merge_config.sh -m .config "$guest_fragment"
        make olddefconfig
        grep -q '^CONFIG_RDMA_SIW=y' .config
        grep -q '^CONFIG_VFIO_PCI=y' .config
        make -j"$(nproc)" bzImage
        mv arch/x86/boot/bzImage "$out.new"
        mv "$out.new" "$out"
    ) >"$log" 2>&1; then
        rm -rf -- "$work"
        tail -n 5 "$log"
        die "the kernel could not be built; the whole log is $log"
    fi
    rm -rf -- "$work"
}

guest_has() {
    local program
    for program in "$@"; do
        command -v "$program" >/dev/null || return
    done
}

# Prints the path of the initramfs; builds it if its contents have changed. With files to add, which
# are often new, it is built in the scratch folder.
guest_initramfs() {
    local program files=("$@") sources=() key out
    for program in "${guest_programs[@]}"; do
        files+=("$(command -v "$program")")
    done
    files+=("$(guest_one_of /usr/lib/*/libibverbs/libsiw-rdmav*.so)")
    # rping cancels a thread, for which glibc loads this library with dlopen().
    files+=("$(guest_one_of /usr/lib/x86_64-linux-gnu/libgcc_s.so.1 /lib/*/libgcc_s.so.1)")
    [ ! -r "$root_dir/tests/interop/siw_peer.c" ] ||
        mapfile -t sources < <(find "$root_dir/tests/interop" -name '*.[ch]' | sort)
    key=$({
        cat "${BASH_SOURCE[0]}" "$root_dir/scripts/lib/guest-init" "${sources[@]}" /bin/busybox \
            "${files[@]}"
        ldd "${files[@]}" | awk '/=> \// {print $3}' | sort -u | xargs cat
    } | sha256sum | cut -c 1-16)
    out=$guest_cache/initramfs-$key.cpio.gz
    [ $# -eq 0 ] || out=$scratch/initramfs.cpio.gz
    if [ ! -s "$out" ]; then
        mkdir -p "$guest_cache"
        guest_fill "$scratch/guest" "${files[@]}"
        if [ ${#sources[@]} -gt 0 ]; then
            guest_compile "$scratch/guest/usr/bin/siw_peer" "${sources[@]}" >&2
        fi
        (cd "$scratch/guest" && find . | cpio --quiet -o -H newc -R 0:0 | gzip -1) >"$out.$$"
        mv "$out.$$" "$out"
        rm -rf -- "$scratch/guest"
    fi
    printf '%s\n' "$out"
}

# Prints the first of the named files that exists.
guest_one_of() {
    local file
    for file in "$@"; do
        [ ! -e "$file" ] || { printf '%s\n' "$file"; return; }
    done
    die "absent: $1; apt-get install ${guest_packages[*]}"
}

# Installs the guest's files below the folder "$1": programs into usr/bin, libraries at their paths.
guest_fill() {
    local root=$1 file
    shift
    mkdir -p "$root"/{bin,usr/bin,etc/libibverbs.d}
    for file in $(ldd "$@" | awk '/=> \// {print $3} $1 ~ /^\/lib.*\/ld-/ {print $1}' | sort -u); do
        guest_add_library "$root" "$file"
    done
    for file in "$@"; do
        case $file in
        *.so | *.so.*) guest_add_library "$root" "$file" ;;
        *) install "$file" "$root/usr/bin/" ;;
        esac
    done
    echo "driver siw" >"$root/etc/libibverbs.d/siw.driver"
    install /bin/busybox "$root/bin/busybox"
    ln -s ../usr/bin/dash "$root/bin/sh"
    install "$root_dir/scripts/lib/guest-init" "$root/init"
}

# Installs a library below the folder "$1" once, and links its other names to it: DPDK refuses a
# driver that it finds as a library and, in another file, as a plug-in.
guest_add_library() {
    local root=$1 file=$2 real
    real=$(realpath -e "$file")
    [ -e "$root$real" ] || install -D "$real" "$root$real"
    if [ "$file" != "$real" ] && [ ! -e "$root$file" ] && [ ! -L "$root$file" ]; then
        mkdir -p "$(dirname "$root$file")"
        ln -s "$real" "$root$file"
    fi
}

# Compiles siw_peer, iwperf's peer in the guest, into the file "$1".
guest_compile() {
    local out=$1 source units=()
    shift
    for source in "$@"; do
        [[ $source = *.h ]] || units+=("$source")
    done
    gcc -O2 -Wall -Wextra -Werror -o "$out" "${units[@]}" -lrdmacm -libverbs -lpthread ||
        die "tests/interop/siw_peer.c could not be compiled; apt-get install libibverbs-dev librdmacm-dev"
}
