# Sourced by the scripts of guests, after setup.sh and guest-image.sh: the network, the guest, and
# commands in it. A script names its guest's interfaces and devices, and calls `run_guest`.
# shellcheck shell=bash
# shellcheck disable=SC2154  # root_dir and scratch are those of setup.sh
# shellcheck disable=SC2034  # some variables are for the scripts

# What follows up to END is printed by --help, after the script's own text.
#
#   --address A/LEN     address of the guest's interface eth0, which siw0 uses; repeatable
#                       (198.18.0.2/24 and 2001:2::2/64)
#   --mtu N             MTU of that interface (1500); the bridge carries 9000
#   --beside COMMAND    starts a command of the host in the guest's network first. The stack's
#                       programs create an interface there with --dev tap:fw0, and the bridge gets it
#   --against COMMAND   the same, started once the command in the guest is ready
#   --capture FILE      captures the packets for tshark as they leave the bridge
#   --timeout SECONDS   limit for the command (120); when it runs out the exit status is 124
#   --memory MIB        of the guest
#   --cpus N            of the guest
#   --accel tcg|kvm     accelerator of QEMU (tcg, which works on every host)
#   --with FILE         adds a program or shared library of the host, repeatable: a program to the
#                       guest's PATH, a library at its path, both with the libraries they need
#   --console           prints the kernel's messages too, on standard error
#   --build             only builds kernel and initramfs, and prints their paths; exit status 77 if
#                       a package for that is absent and cannot be installed
#   --serve             runs commands from standard input: see below
#
# The kernel is $FERROWARP_GUEST_KERNEL or an earlier build. Otherwise the script builds one from
# Debian's linux-source-6.12 with tests/interop/kernel.fragment, in 5 to 10 minutes. It caches the
# kernel in ${XDG_CACHE_HOME:-~/.cache}/ferrowarp/guest. The initramfs lies there too; it consists of
# files of the host's packages.
#
# --serve reads requests from standard input, one per line, and exits at the end of its input:
#
#   run ID COMMAND LINE   runs it concurrently with the others; ID is a word
#   kill ID [SIGNAL]      sends it and all its children a signal (KILL); its shell has started it
#                         with INT and QUIT ignored
#   monitor COMMAND       a command of QEMU's monitor, such as `set_link card0 off`, or
#                         `savevm NAME` and `loadvm NAME` for a snapshot
#   cut                   kills the guest without a shutdown
#   boot                  boots a new guest in the same network
#
# and responds on standard output:
#
#   ready KEY=VALUE ...   the guest is up: namespace, interface (of eth0, on the host),
#                         qemu (its process), kernel
#   ID | TEXT             a line of the command's output
#   ID exit CODE          the command has exited
#   gone                  the guest has ended
# END

# Prints the text at the top of the script, and the one above.
usage() {
    sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0"
    sed -n '/^# What follows/,/^# END/{/^# What follows/d;/^# END/d;s/^# \{0,1\}//p}' \
        "$root_dir/scripts/lib/guest.sh"
}

# --- Options --------------------------------------------------------------------------------------

mode=command mtu=1500 addresses=() beside='' against='' capture='' timeout=120
memory=512 cpus=1 accel=tcg console=false extra_files=()

# Takes an option that all guests have from the arguments; sets `taken` to their number. Fails if it
# is none.
take_option() {
    taken=2
    case $1 in
    --address) addresses+=("${2:?--address needs one}") ;;
    --mtu) mtu=${2:?--mtu needs a number} ;;
    --beside) beside=${2:?--beside needs a command} ;;
    --against) against=${2:?--against needs a command} ;;
    --capture) capture=$(realpath -m "${2:?--capture needs a file}") ;;
    --timeout) timeout=${2:?--timeout needs seconds} ;;
    --memory) memory=${2:?--memory needs MiB} ;;
    --cpus) cpus=${2:?--cpus needs a number} ;;
    --accel) accel=${2:?--accel needs tcg or kvm} ;;
    --with) extra_files+=("$(realpath -e "${2:?--with needs a file}")") ;;
    --console) console=true taken=1 ;;
    --build) mode=build taken=1 ;;
    --serve) mode=serve taken=1 ;;
    *) return 1 ;;
    esac
}

# Checks the options; the arguments are the command for the guest.
check_options() {
    local number
    [ "$mode" = command ] || [ $# -eq 0 ] || die "--$mode takes no command"
    [ "$mode" != command ] || [ $# -gt 0 ] || { usage >&2; exit 2; }
    for number in "$mtu" "$timeout" "$memory" "$cpus"; do
        [[ $number =~ ^[1-9][0-9]*$ ]] || die "not a number above 0: $number"
    done
    [ ${#addresses[@]} -gt 0 ] || addresses=(198.18.0.2/24 2001:2::2/64)
}

# --- The network ---------------------------------------------------------------------------------

ns=
# The process that reports changes of the namespace's interfaces.
monitor=
# The interfaces of the guest's cards, at the host's end.
guest_interfaces=()
# MTU of the bridge.
wire_mtu=9000

# Creates a namespace with a bridge.
make_network() {
    local number=0
    while ip netns list 2>/dev/null | grep -q "^fw-test-$$-$number\b"; do
        number=$((number + 1))
    done
    ip netns add "fw-test-$$-$number"
    ns=fw-test-$$-$number
    # Only the guest and the stack send there.
    ip netns exec "$ns" sh -c 'echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6
        echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6'
    ip -n "$ns" link set lo up
    ip -n "$ns" link add br0 type bridge stp_state 0 forward_delay 0 mcast_snooping 0
    ip -n "$ns" link set br0 up
}

# Adds an interface for a card of the guest to the bridge: its name, and options of `ip tuntap`.
add_guest_interface() {
    local name=$1
    shift
    ip -n "$ns" tuntap add dev "$name" mode tap "$@"
    ip -n "$ns" link set "$name" mtu "$wire_mtu" master br0 up
    guest_interfaces+=("$name")
}

# Adds the interfaces that programs create from now on to the bridge.
watch_network() {
    exec {changes}< <(exec ip -n "$ns" -o monitor link)
    monitor=$!
    join_interfaces <&"$changes" &
}

is_guest_interface() {
    local name
    for name in "${guest_interfaces[@]}"; do
        [ "$name" != "$1" ] || return 0
    done
    return 1
}

# Adds interfaces to the bridge as they appear. A program may set its interface's MTU after that.
join_interfaces() {
    local line name
    while read -r line; do
        [[ $line =~ ^[0-9]+:\ ([^:@ ]+): ]] || continue
        name=${BASH_REMATCH[1]}
        case $name in lo | br0) continue ;; esac
        ! is_guest_interface "$name" || continue
        if [[ $line != *" master br0 "* || $line != *" mtu $wire_mtu "* ]]; then
            ip -n "$ns" link set "$name" mtu "$wire_mtu" master br0 up 2>/dev/null || true
        fi
    done
}

# True once a program's interface is on the bridge.
is_joined() {
    local name
    for name in $(ip -n "$ns" -o link show master br0 | awk -F'[:@ ]+' '{print $2}'); do
        is_guest_interface "$name" || return 0
    done
    return 1
}

# Captures the packets that leave the bridge. If the host computes a card's checksums, only these
# packets have them.
start_capture() {
    command -v tcpdump >/dev/null || die "no tcpdump; apt-get install tcpdump"
    ip netns exec "$ns" tcpdump -i any -n -s 0 -B 65536 -U --immediate-mode -Z root -w "$capture" \
        outbound 2>"$scratch/tcpdump.log" &
    until grep -q "listening on" "$scratch/tcpdump.log" || ! kill -0 $! 2>/dev/null; do
        sleep 0.1
    done
}

# Ends the processes in the namespace, all of which were started here, and deletes the namespace.
remove_network() {
    [ -n "$ns" ] || return 0
    local pids tries
    [ -z "$monitor" ] || kill "$monitor" 2>/dev/null || true
    # The stack's programs close their devices on SIGINT.
    for tries in INT "" "" "" "" "" "" "" "" "" KILL; do
        mapfile -t pids < <(ip netns pids "$ns" 2>/dev/null)
        [ ${#pids[@]} -gt 0 ] || break
        [ -z "$tries" ] || kill "-$tries" "${pids[@]}" 2>/dev/null || true
        sleep 0.2
    done
    ip netns del "$ns" || true
    ns=
}

# --- The guest -----------------------------------------------------------------------------------

qemu='' boots=0
# Requests to the guest, its responses, and QEMU's monitor.
to_guest='' from_guest='' to_monitor=''
# Options of QEMU: the machine, and the cards; and words for the kernel's command line.
machine=() cards=() kernel_words=()

# A card for the guest's kernel, with siw: it becomes eth0 if its address is the first. No
# segmentation or checksum offloads: packets up to the MTU, with checksums, as between two hosts.
siw_interface=guest0
siw_card=(
    -netdev "tap,id=wire,ifname=$siw_interface,script=no,downscript=no"
    -device "virtio-net-pci,netdev=wire,mac=52:54:00:12:00:02,addr=0x3,csum=off,gso=off,guest_csum=off,guest_tso4=off,guest_tso6=off,guest_ecn=off,guest_ufo=off"
)

# Kills the guest without a shutdown, as a power failure would.
kill_guest() {
    [ -n "$qemu" ] || return 0
    kill -KILL "$qemu" 2>/dev/null || true
    wait "$qemu" 2>/dev/null || true
    qemu=
}

# Starts a guest and waits until it accepts requests; sets `ready` to its properties. On a busy host
# a guest may miss its timers while it boots, so a failed boot is retried once.
boot_guest() {
    start_guest || start_guest || die "the guest does not come up"
}

start_guest() {
    boots=$((boots + 1))
    local pipe=$scratch/orders-$boots log=$scratch/console-$boots append line part='' both
    local monitor_pipe=$scratch/monitor-$boots began=$SECONDS
    # Emulated timers may fire too late for the kernel's timer check, after which it panics.
    append="console=ttyS0 panic=-1 quiet no_timer_check guest.mtu=$mtu"
    append+=$(printf ' guest.address=%s' "${addresses[@]}")
    append+=" ${kernel_words[*]-}"
    mkfifo "$pipe.in" "$pipe.out" "$monitor_pipe.in" "$monitor_pipe.out"
    # QEMU ends with this script, even if the script is killed. Snapshots need a drive that can hold
    # them: a temporary image that QEMU makes over an empty one.
    ip netns exec "$ns" setpriv --pdeathsig KILL qemu-system-x86_64 \
        -accel "$accel" -cpu max -smp "$cpus" -m "$memory" "${machine[@]}" \
        -nodefaults -no-user-config -display none -no-reboot \
        -kernel "$kernel" -initrd "$initramfs" -append "$append" \
        -chardev "file,id=console,path=$log" -serial chardev:console \
        -chardev "pipe,id=orders,path=$pipe" -serial chardev:orders \
        -chardev "pipe,id=monitor,path=$monitor_pipe" -mon chardev=monitor \
        -drive if=none,id=snapshots,file=null-co://,format=raw,snapshot=on \
        "${cards[@]}" -device virtio-rng-pci </dev/null >"$log.qemu" 2>&1 &
    qemu=$!
    # Opened for reading and writing: opening then does not wait for QEMU, which may fail to start.
    exec {both}<>"$pipe.out"
    while :; do
        if ! IFS= read -r -t 1 -u "$both" line; then
            part+=$line
            kill -0 "$qemu" 2>/dev/null && [ $((SECONDS - began)) -lt 60 ] && continue
            cat "$log.qemu" "$log" 2>/dev/null | tail -n 30 >&2
            exec {both}>&-
            kill_guest
            return 1
        fi
        line=$part$line part=
        [[ $line != "ready "* ]] || break
    done
    # From here on the end of QEMU is the end of file.
    [ -z "$from_guest" ] || exec {from_guest}<&- {to_guest}>&- {to_monitor}>&-
    exec {from_guest}<"$pipe.out" {to_guest}<>"$pipe.in" {to_monitor}<>"$monitor_pipe.in" {both}>&-
    cat "$monitor_pipe.out" >"$scratch/monitor-$boots" &
    ready="$line accel=$accel namespace=$ns interface=$siw_interface qemu=$qemu"
}

cleanup_guest() {
    local status=$?
    set +e
    trap - EXIT INT TERM HUP
    ! $console || cat "$scratch"/console-* >&2 2>/dev/null
    kill_guest
    remove_network
    (exit "$status")
    cleanup
}

# --- Commands ------------------------------------------------------------------------------------

# The folder of the stack's programs on the host.
programs_folder() {
    printf '%s\n' "${FERROWARP_BIN:-${CARGO_TARGET_DIR:-$root_dir/target}/release}"
}

# Runs "$1" on the host, in the guest's network, with the built programs first in PATH.
on_host() {
    PATH=$(programs_folder):$PATH exec ip netns exec "$ns" bash -c "exec $1"
}

# The guest's command is ready for the one of --against once it has printed `ready_text`, or once
# something listens on `ready_port` of the guest's kernel.
ready_text='' ready_port=''

# Runs the guest's command; returns the exit status of the script.
run_command() {
    local host_beside='' host_against='' status='' line part='' left deadline began pid
    if [ -n "$beside" ]; then
        on_host "$beside" &
        host_beside=$!
        began=$SECONDS
        until is_joined || ! kill -0 "$host_beside" 2>/dev/null || [ $((SECONDS - began)) -gt 20 ]; do
            sleep 0.1
        done
        # It responds to ARP from now on; its listener follows shortly.
        sleep 1
    fi
    printf 'run 1 %s\n' "$(printf '%q ' "$@")" >&"$to_guest"
    if [ -n "$against" ] && [ -n "$ready_port" ]; then
        printf 'run listening listening %s\n' "$ready_port" >&"$to_guest"
    fi
    deadline=$((SECONDS + timeout))
    while [ -z "$status" ]; do
        left=$((deadline - SECONDS))
        if [ "$left" -le 0 ]; then
            note "the command did not end within $timeout s"
            return 124
        fi
        if ! IFS= read -r -t 1 -u "$from_guest" line; then
            part+=$line
            if ! kill -0 "$qemu" 2>/dev/null; then
                note "the guest is gone"
                return 125
            fi
            # Without its client a server would wait until the timeout.
            for pid in $host_against; do
                wait_for "$pid" 0 || return
            done
            continue
        fi
        line=$part$line part=
        case $line in
        "1 | "*) printf '%s\n' "${line#1 | }" ;;
        "1 exit "*) status=${line##* } ;;
        "listening | "*) note "${line#listening | }" ;;
        esac
        if [ -n "$against" ] && [ -z "$host_against" ] && is_ready "$line"; then
            on_host "$against" &
            host_against=$!
        fi
    done
    for pid in $host_against $host_beside; do
        # A server that keeps running is no failure; it is ended with the network.
        left=$((deadline - SECONDS))
        wait_for "$pid" "$((left < 5 ? left : 5))" || [ "$status" -ne 0 ] || status=$?
    done
    return "$status"
}

# True if this response says that the command of --against may start.
is_ready() {
    if [ -n "$ready_port" ]; then
        [ "$1" = "listening exit 0" ]
    else
        [[ $1 == "1 | "*"$ready_text"* ]]
    fi
}

# Exit status of the process "$1", or 0 if it still runs after "$2" seconds.
wait_for() {
    local left=$(($2 * 10))
    while kill -0 "$1" 2>/dev/null; do
        [ "$left" -gt 0 ] || return 0
        left=$((left - 1))
        sleep 0.1
    done
    wait "$1"
}

# Copies the guest's responses to standard output until the end of file.
forward_output() {
    cat <&"$from_guest"
    say gone
}

serve() {
    local line
    say "$ready"
    forward_output &
    while IFS= read -r line; do
        case $line in
        "run "* | "kill "*) printf '%s\n' "$line" >&"$to_guest" ;;
        "monitor "*) printf '%s\n' "${line#monitor }" >&"$to_monitor" ;;
        cut) kill_guest ;;
        boot)
            kill_guest
            boot_guest
            say "$ready"
            forward_output &
            ;;
        *) note "unknown request: $line" ;;
        esac
    done
}

# --- Main ----------------------------------------------------------------------------------------

# Programs that the script needs on the host in addition to those that every guest needs.
host_programs=()

# Sets `kernel` and `initramfs`.
prepare_guest() {
    if is_root; then
        install_packages "${guest_packages[@]}"
    fi
    guest_need qemu-system-x86_64 busybox cpio gzip setpriv ip "${host_programs[@]}" "${guest_programs[@]}" || exit
    kernel=$(guest_kernel) || exit
    initramfs=$(guest_initramfs ${extra_files[@]+"${extra_files[@]}"}) || exit 1
    if [ "$mode" = build ]; then
        say "$kernel"
        say "$initramfs"
        exit 0
    fi
    is_root || die "only root may make a network namespace"
    [ -c /dev/net/tun ] || die "no /dev/net/tun: this kernel has no tap interfaces"
    remove_stale_namespaces
    trap cleanup_guest EXIT
}

# Boots the guest in its network, which must have its interfaces, and runs the command.
run_guest() {
    local status=0
    watch_network
    [ -z "$capture" ] || start_capture
    boot_guest
    case $mode in
    serve) serve ;;
    command)
        run_command "$@" || status=$?
        exit "$status"
        ;;
    esac
}
