//! Packages that the scripts install, stages that they skip, leftovers that they remove.

use std::process::Command;
use std::time::Duration;

use ferrowarp_tests::process;
use ferrowarp_tests::skip_without;
use ferrowarp_tests::workspace::root;

use crate::tidy;

/// Runs lines of bash with the scripts' functions; returns success, and the output.
fn bash(lines: &str) -> (bool, String) {
    let script = format!(". scripts/lib/setup.sh; trap_cleanup; make_scratch; {lines}");
    let mut command = Command::new("bash");
    command.args(["-euc", &script]).current_dir(root());
    let ended = process::run(&mut command, Duration::from_secs(60)).expect("bash runs");
    (ended.success(), ended.output)
}

#[test]
fn folders_of_other_dpdk_programs_are_no_leftovers() {
    let (works, output) = bash(
        "list_resources | sort -u >$scratch/before; mkdir -p $RUNTIME_DIRECTORY/dpdk/ferrowarp-1; \
         check_leftovers $scratch/before",
    );
    assert!(
        !works && output.contains("dpdk/ferrowarp-1"),
        "a leftover of the run is not reported: {output}"
    );

    // DPDK's default folder for runtime files.
    let foreign = format!("/run/dpdk/fw-foreign-{}", std::process::id());
    if std::fs::create_dir_all(&foreign).is_err() {
        return skip_without("right to make a folder in /run/dpdk");
    }
    std::fs::remove_dir(&foreign).expect("just made");
    let (works, output) = bash(&format!(
        "list_resources | sort -u >$scratch/before; mkdir -p {foreign}; status=0; \
         check_leftovers $scratch/before || status=1; rmdir {foreign}; exit $status"
    ));
    let _ = std::fs::remove_dir(&foreign);
    assert!(works, "a leftover of another program is reported: {output}");
}

#[test]
fn only_listed_skips_are_allowed() {
    let list = std::fs::read_to_string(root().join("tests/allowed-skips")).expect("the list");
    let allowed: Vec<_> = list.lines().filter(|line| line.starts_with("skipped: ")).collect();
    let check = |lines: &str| {
        bash(&format!("printf '{lines}' >$scratch/x.log; only_allowed_skips $scratch/x.log"))
    };
    let (passes, said) = check("test result: ok\\n");
    assert!(passes, "{said}");
    for skip in &allowed {
        let (passes, said) = check(&format!("== test\\n{skip}\\ntest a::b ... {skip}\\n"));
        assert!(passes, "{said}");
    }
    for skip in ["skipped: no QEMU", "test a::b ... skipped: no QEMU"] {
        let (passes, said) = check(&format!("{}\\n{skip}\\n", allowed[0]));
        assert!(!passes && said.ends_with("required, but:\nskipped: no QEMU\n"), "{said}");
    }
    // Tests and stages still print each of them.
    let sources: String = tidy::rust_files().iter().map(|file| tidy::text(file)).collect();
    let scripts = ["scripts/ci.sh", "scripts/sanitize"].map(tidy::text).concat();
    for skip in allowed {
        let reason = skip.trim_start_matches("skipped: ").trim_start_matches("this kernel has no ");
        // A stage may print the rest from a variable.
        let start = reason.find(" has no ").map_or(reason, |at| &reason[..at + " has no ".len()]);
        let is_printed = sources.contains(start) || scripts.contains(start);
        assert!(is_printed, "nothing prints: {skip}");
    }
}

#[test]
fn sanitize_names_what_it_lacks() {
    let (_, said) = bash(
        "mkdir $scratch/bin; printf '#!/bin/sh\ncase $1 in --print) echo /nonexistent ;; -vV) echo \
         host: none ;; *) echo rustc 1.91 ;; esac\n' >$scratch/bin/rustc; printf '#!/bin/sh\necho \
         cargo 99.0.0\n' >$scratch/bin/cargo; chmod +x $scratch/bin/*; \
         CARGO_HOME=$scratch scripts/sanitize thread || echo status $?",
    );
    let lacks = ["rustc 1.91 has no runtime of the thread sanitizer for none", "no libdpdk"];
    assert!(lacks.iter().any(|lack| said.contains(&format!("skipped: {lack}"))), "{said}");
    assert!(said.contains("status 77"), "{said}");
}

#[test]
fn rustfmt_and_clippy_come_from_where_cargo_does() {
    for (owner, packages, expected) in [
        ("", "", "rustup component add clippy\n"),
        ("rustup", "rust-clippy", "rustup component add clippy\n"),
        ("cargo", "rust-clippy", "apt-get install rust-clippy\n"),
        ("cargo-web", "rust-clippy rustfmt-web", ""),
    ] {
        let (works, said) = bash(&format!(
            "dpkg-query() {{ [ -z '{owner}' ] || echo '{owner}: /usr/bin/cargo'; }}; \
             package_version() {{ [[ ' {packages} ' != *\" $1 \"* ]] || echo 1; }}; \
             component_line clippy"
        ));
        assert!(works && said == expected, "{owner}: {said}");
    }
}

/// A run of all mutants takes hours: a signal ends it at once, and all programs that it started.
#[test]
fn signals_end_conformance_and_its_programs() {
    for (signal, group, status) in [("TERM", "", 143), ("INT", "-", 130)] {
        let (_, said) = bash(&format!(
            "mkdir $scratch/bin; printf '#!/bin/sh\ncase $1 in run) sleep 300 & echo $! \
             >$TMPDIR/../pid; wait ;; --version) echo cargo 99.0.0 ;; esac\n' >$scratch/bin/cargo; \
             chmod +x $scratch/bin/cargo; export CARGO_HOME=$scratch CARGO_TARGET_DIR=$scratch; \
             set -m; scripts/conformance --mutate-all & script=$!; set +m; \
             until [ -s $scratch/pid ]; do sleep 0.1; done; \
             kill -{signal} -- {group}$script; status=0; wait $script || status=$?; \
             for _ in $(seq 100); do kill -0 $(cat $scratch/pid) 2>/dev/null || \
             {{ echo $status; exit; }}; sleep 0.1; done; echo the program goes on"
        ));
        assert_eq!(said, format!("{status}\n"), "{signal}");
    }
}

#[test]
fn mktemp_uses_the_scratch_folder() {
    let (works, output) = bash("case $(mktemp -u) in $scratch/*) ;; *) exit 1 ;; esac");
    assert!(works, "{output}");
}
