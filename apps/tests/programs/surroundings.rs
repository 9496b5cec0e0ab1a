//! The programs where the system lacks what they are used to: file systems, folders, limits,
//! hugepages under a control group. They work, or end with one line that names the lack.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use nix::libc;
use nix::unistd::geteuid;

use crate::with_others;

const RING: &str = "iwping loop -C 2 --timeout 60";
const LARGE: &str = "iwperf loop write-bw -n 20 -s 1M --verify --timeout 60";

/// Shell commands before the program, and part of its only line of error, if it fails.
type Row = (&'static str, Option<&'static str>);

const ROWS: [Row; 41] = [
    // File systems that are not mounted, or hide what EAL looks for.
    ("umount -l /sys", Some("(mount sysfs at /sys)")),
    ("mount -t tmpfs none /sys/devices/system/cpu", Some("(mount sysfs at /sys)")),
    ("mount -t tmpfs none /sys/devices/system/node", None),
    ("mount -t tmpfs none /sys/kernel/mm/hugepages", None),
    ("mount -t tmpfs none /sys/kernel/mm", None),
    ("mount -t tmpfs none /sys/bus", None),
    ("mount -t tmpfs none /proc", Some("(mount proc at /proc)")),
    ("mount -t proc -o subset=pid proc /proc", Some("/proc/meminfo tells no size of hugepages")),
    ("mount --bind /dev/null /proc/meminfo", Some("/proc/meminfo tells no size of hugepages")),
    ("mount --bind /dev/null /proc/cpuinfo", None),
    ("mount -t proc -o hidepid=2 proc /proc", None),
    ("mount -t tmpfs none /dev", None),
    ("mount -t hugetlbfs -o mode=0 none /mnt && exec setpriv --bounding-set=-all", None),
    ("mount -t tmpfs none /dev/shm", None),
    ("mount -t tmpfs -o ro none /dev/shm", None),
    // Folders.
    ("mount -t tmpfs -o ro none /tmp", None),
    ("mount -t tmpfs -o ro none /var/run/", Some("no folder can be created in /var/run (set")),
    ("mount -t tmpfs none /var/run/ && mkdir /var/run/dpdk && chmod 0 /var/run/dpdk", None),
    ("mount -t tmpfs -o nr_inodes=1 none /var/run/", None),
    ("mount -t tmpfs none /var/run/ && echo > /var/run/dpdk", None),
    ("export RUNTIME_DIRECTORY=/absent", Some("no folder can be created in /absent (set")),
    ("mount -t tmpfs -o ro none /var/run/ && export RUNTIME_DIRECTORY=/tmp", None),
    ("unset HOME", None),
    ("export HOME=", None),
    ("export HOME=/absent", None),
    ("mount -t tmpfs -o ro none /mnt && export HOME=/mnt", None),
    ("exec env -i PATH=$PATH", None),
    ("mkdir gone && cd gone && rmdir ../gone", None),
    // Limits and rights.
    ("ulimit -n 20", Some("(raise it with ulimit -n)")),
    ("ulimit -n 48", None),
    ("ulimit -v 500000", Some("(raise the limits: ulimit -v)")),
    ("ulimit -d 10000", Some("MiB of data (raise it with ulimit -d)")),
    ("ulimit -d 50000", Some("MiB of data (raise it with ulimit -d)")),
    ("ulimit -v 500000 -f 1000", Some("(raise the limits: ulimit -v -f)")),
    ("ulimit -f 0", Some("(raise the limits: ulimit -f)")),
    ("ulimit -l 0", None),
    ("ulimit -s 128", None),
    ("taskset -p -c 0 $$ > /dev/null", None),
    ("exec setpriv --bounding-set=-all --inh-caps=-all", None),
    ("exec setpriv --no-new-privs --reuid 65534 --regid 65534 --clear-groups", None),
    ("exec unshare -U", None),
];

/// Runs a program after `before`, in a mount namespace of its own.
fn run(before: &str, program: &str) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let programs = Path::new(env!("CARGO_BIN_EXE_iwperf")).parent().unwrap();
    // A command that takes the program as its arguments, or one before it.
    let joint = if before.contains("exec ") { " " } else { " && exec " };
    Command::new("unshare")
        .args(["-m", "bash", "-c", &format!("{before}{joint}{program}")])
        .current_dir(folder.path())
        .env("PATH", format!("{}:{}", programs.display(), std::env::var("PATH").unwrap()))
        .env_remove("RUNTIME_DIRECTORY")
        .env_remove("TMPDIR")
        .output()
        .unwrap()
}

/// Returns `None` if the program worked in silence, or its only line of error.
fn outcome(before: &str, program: &str) -> Result<Option<String>, String> {
    let output = run(before, program);
    let stderr = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<_> = stderr.lines().filter(|line| !line.starts_with(" WARN")).collect();
    match (output.status.code(), &lines[..]) {
        (Some(0), []) => Ok(None),
        (Some(1), [line]) => Ok(Some((*line).to_owned())),
        _ => Err(format!("{before}: {program}: {:?}: {lines:?}", output.status)),
    }
}

/// Returns a complaint if the program did not end as it should.
fn complaint(before: &str, program: &str, error: Option<&str>) -> Option<String> {
    match (outcome(before, program), error) {
        (Ok(None), None) => None,
        (Ok(Some(line)), Some(error)) if line.contains(error) => None,
        (Ok(ended), _) => Some(format!("{before}: {program}: {ended:?}, not {error:?}")),
        (Err(ended), _) => Some(ended),
    }
}

fn is_root() -> bool {
    if !geteuid().is_root() {
        println!("skipped: not root, which mounts and control groups need");
    }
    geteuid().is_root()
}

#[test]
fn programs_work_or_name_what_the_system_lacks() {
    if !is_root() {
        return;
    }
    let _lock = with_others();
    let complaints = ROWS.iter().filter_map(|(before, error)| complaint(before, RING, *error));
    let complaints: Vec<_> = complaints.collect();
    assert!(complaints.is_empty(), "{} rows:\n{}", complaints.len(), complaints.join("\n"));
}

/// Threads are limited for each user, or by a control group: no panic, and no task that waits for
/// ever for one that was not started.
#[test]
fn programs_work_with_few_threads_or_name_the_limit() {
    /// A user without other processes.
    const USER: &str = "--reuid 61234 --regid 61234 --clear-groups";
    if !is_root() {
        return;
    }
    let _lock = with_others();
    let mut complaints = Vec::new();
    for threads in 1..=8 {
        // A /tmp of its own: DPDK makes /tmp/dpdk there, which another user may just have.
        let before = format!(
            "mount -t tmpfs none /tmp && exec setpriv --no-new-privs {USER} prlimit \
             --nproc={threads}"
        );
        for program in [RING, LARGE] {
            match outcome(&before, program) {
                Ok(None) => (),
                Ok(Some(line)) if line.contains("ulimit -u") => (),
                Ok(Some(line)) => complaints.push(format!("{before}: {program}: {line}")),
                Err(ended) => complaints.push(ended),
            }
        }
    }
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

/// Returns the command before a program that may not use these system calls, as under the filter of
/// a container runtime.
fn refusing(calls: &[libc::c_long]) -> String {
    // The number is loaded and compared with each; the last instruction permits the rest.
    let mut filter = vec![(0x20, 0, 0, 0)];
    for call in calls {
        filter.push((0x15, 0, 1, *call));
        filter.push((0x06, 0, 0, 0x0005_0000 | libc::c_long::from(libc::EPERM)));
    }
    filter.push((0x06, 0, 0, 0x7FFF_0000));
    let words = filter.iter().map(|(code, yes, no, value)| format!("{code},{yes},{no},{value}"));
    let words = words.collect::<Vec<_>>().join(",");
    let (prctl, count) = (libc::SYS_prctl, filter.len());
    format!(
        "exec perl -e '$filter = pack(\"(SCCL)*\", {words}); \
         $program = pack(\"Sx6P\", {count}, $filter); \
         syscall({prctl}, 38, 1, 0, 0, 0); syscall({prctl}, 22, 2, $program) == 0 or die; \
         exec @ARGV'"
    )
}

/// Docker's profile has most of these without CAP_SYS_ADMIN and CAP_SYS_NICE. `get_mempolicy` made
/// EAL find no memory in hugepages.
#[test]
fn programs_work_under_a_filter_of_system_calls() {
    let calls = [
        &[libc::SYS_get_mempolicy][..],
        &[libc::SYS_get_mempolicy, libc::SYS_set_mempolicy],
        &[libc::SYS_mbind, libc::SYS_move_pages],
        &[libc::SYS_bpf, libc::SYS_perf_event_open, libc::SYS_userfaultfd, libc::SYS_keyctl],
        &[libc::SYS_mlock, libc::SYS_mlockall, libc::SYS_sched_setscheduler],
        &[libc::SYS_membarrier, libc::SYS_ptrace, libc::SYS_io_uring_setup],
    ];
    let all = calls.concat();
    let _lock = with_others();
    let rows = calls
        .into_iter()
        .chain([&all[..]])
        .flat_map(|calls| [RING, LARGE].map(|program| complaint(&refusing(calls), program, None)));
    let complaints: Vec<_> = rows.flatten().collect();
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

/// An interface that is down when a program starts: it is named, once, and the program waits.
#[test]
fn interface_that_is_down_at_the_start_is_named() {
    if !is_root() {
        return;
    }
    let _lock = with_others();
    for program in [
        "iwping server -P --dev af_packet:fwv0 --ip 198.18.7.1/24",
        "iwlink --left memif:$PWD/sock,server --right af_packet:fwv0",
    ] {
        let before = "ip link add fwv0 type veth peer name fwv1; trap : TERM";
        let wait = "for i in $(seq 600); do grep -q down err && break; sleep 0.1; done";
        let script = format!(
            "exec unshare -n sh -c '{before}; {program} 2> err & {wait}; sleep 1; kill $!; \
             wait $!; code=$?; cat err >&2; exit $code'"
        );
        let output = run(&script, "");
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        let expected = "af_packet:fwv0: the link is down: set up the interface";
        let is_right = stderr.lines().count() == 1 && stderr.contains(expected);
        assert!(is_right && output.status.success(), "{program}: {:?}: {stderr}", output.status);
    }
}

/// A control group with limits on hugepages, removed on drop.
struct ControlGroup {
    folder: PathBuf,
    /// The root's file, if the controller was passed on for this group.
    passed_on: Option<PathBuf>,
}

impl ControlGroup {
    /// `None` if the kernel has no such controller.
    fn new() -> Option<Self> {
        let roots = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"].map(Path::new);
        let has = |file: &str, root: &Path| {
            let text = fs::read_to_string(root.join(file)).unwrap_or_default();
            text.split_whitespace().any(|word| word == "hugetlb")
        };
        let root = roots.into_iter().find(|root| has("cgroup.controllers", root))?;
        let control = root.join("cgroup.subtree_control");
        let was_passed_on = has("cgroup.subtree_control", root);
        fs::write(&control, "+hugetlb").ok()?;
        let folder = root.join(format!("fw-test-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        Some(Self { folder, passed_on: (!was_passed_on).then_some(control) })
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        // The kernel lets go of the last process a little later.
        for _ in 0..100 {
            if fs::remove_dir(&self.folder).is_ok() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        if let Some(control) = &self.passed_on {
            let _ = fs::write(control, "-hugetlb");
        }
    }
}

/// Hugepages are free on the machine, but the control group grants few of them: ordinary pages
/// serve, and no access beyond the limit raises SIGBUS.
#[test]
fn programs_work_under_a_limit_on_hugepages() {
    if !is_root() {
        return;
    }
    let _lock = with_others();
    let Some(group) = ControlGroup::new() else {
        println!("skipped: no hugetlb controller of control groups");
        return;
    };
    let enter = format!("echo $$ > {}/cgroup.procs", group.folder.display());
    let mut complaints = Vec::new();
    for file in ["hugetlb.2MB.max", "hugetlb.2MB.rsvd.max"].map(|file| group.folder.join(file)) {
        if !file.exists() {
            continue;
        }
        for limit in ["0", "2097152", "4194304", "67108864", "max"] {
            fs::write(&file, limit).unwrap();
            for program in [RING, LARGE] {
                let found = complaint(&enter, program, None);
                complaints.extend(found.map(|text| format!("{limit} {}: {text}", file.display())));
            }
        }
    }
    drop(group);
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}
