//! Cleanup by the scripts.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use ferrowarp_tests::process;
use ferrowarp_tests::skip_without;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies in the workspace")
}

/// Runs lines of bash with the scripts' functions; returns success, and the output.
fn bash(lines: &str) -> (bool, String) {
    let script = format!(". scripts/lib/setup.sh; undo_at_exit; make_scratch; {lines}");
    let mut command = Command::new("bash");
    command.args(["-euc", &script]).current_dir(root());
    let ended = process::run(&mut command, Duration::from_secs(60)).expect("bash runs");
    (ended.success(), ended.output)
}

#[test]
fn folders_of_other_dpdk_programs_are_no_leftovers() {
    let (works, said) = bash(
        "footprint | sort -u >$scratch/before; mkdir -p $RUNTIME_DIRECTORY/dpdk/ferrowarp-1; \
         left_behind $scratch/before",
    );
    assert!(!works && said.contains("dpdk/ferrowarp-1"), "what is ours counts: {said}");

    // DPDK's default folder for runtime files.
    let foreign = format!("/run/dpdk/fw-foreign-{}", std::process::id());
    if std::fs::create_dir_all(&foreign).is_err() {
        return skip_without("right to make a folder in /run/dpdk");
    }
    std::fs::remove_dir(&foreign).expect("just made");
    let (works, said) = bash(&format!(
        "footprint | sort -u >$scratch/before; mkdir {foreign}; status=0; \
         left_behind $scratch/before || status=1; rmdir {foreign}; exit $status"
    ));
    let _ = std::fs::remove_dir(&foreign);
    assert!(works, "what is not does not: {said}");
}

#[test]
fn mktemp_uses_the_scratch_folder() {
    let (works, said) = bash("case $(mktemp -u) in $scratch/*) ;; *) exit 1 ;; esac");
    assert!(works, "{said}");
}
