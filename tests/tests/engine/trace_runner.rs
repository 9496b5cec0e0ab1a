//! A trace passes if it matches, and its mismatch is reported.

use ferrowarp_tests::trace::run;

/// Runs the lines of a trace after opening a connection.
fn after_open(lines: &str) -> Result<(), String> {
    run(&format!("# clause: X\n# Shows.\n  ! open client\n{lines}"))
}

#[test]
fn matching_trace_passes() {
    let lines = "  ! write 100\n  > P. 1:101 ack 1\n+10ms < . 1:51 ack 101\n+50us > . 101 ack 51";
    assert_eq!(after_open(lines), Ok(()));
}

#[test]
fn mismatch_is_reported() {
    for (lines, what) in [
        ("  ! write 100\n  > . 2:102 ack 1", "seq is 1, expected 2"),
        ("  ! write 100\n  > . 1:100 ack 1", "length is 100, expected 99"),
        ("  ! write 100\n  > . 1:101 ack 2", "ack is 1, expected 2"),
        ("  ! write 100\n  > F. 1:101 ack 1", "flags is ., expected F."),
        ("  ! write 100\n  > . 1:101 ack 1 win 5", "win is 65535, expected 5"),
        ("  ! write 100\n  > . 1:101 ack 1 no-push", "PSH is true"),
        ("  ! write 100\n  > . 1:101 ack 1 ts", "timestamps is false, expected true"),
        ("  ! write 100\n  > . 1:101 ack 1 sack 5:6", "sack is [], expected [(5, 6)]"),
        ("  ! write 100\n  > . 1:101 ack 1 ect0", "the ECN field is 0, expected 2"),
        ("  ! write 100\n  > . 1:101 ack 1 port 7", "another port"),
        ("  = state Closed", "state is `Established`, expected `Closed`"),
        ("  = cwnd 1..9", "cwnd is `10000`, expected `1..9`"),
        ("  = events Reset", "events is ``, expected `Reset`"),
        ("  = speed 5", "nothing is called `speed`"),
        ("  ! fly", "there is no call `fly`"),
    ] {
        let error = after_open(lines).unwrap_err();
        assert!(error.contains(what), "{error}");
    }
}

#[test]
fn early_late_or_missing_segment_fails() {
    for (lines, what) in [
        ("  < . 1:101 ack 1\n  > . 1 ack 101", "nothing went out until @10ms"),
        ("  < . 1:101 ack 1\n+100us > . 1 ack 101", "seen @10.05ms"),
        ("  < . 1:101 ack 1\n  none until +1ms", "not expected: @10.05ms"),
        ("  ! write 100", "after this line: not expected: @10ms"),
        ("  ! write 100\n  < . 1 ack 101", "not expected: @10ms"),
        ("@5ms ! write 100", "it is @10ms already"),
    ] {
        let error = after_open(lines).unwrap_err();
        assert!(error.contains(what), "{error}");
    }
}

#[test]
fn failure_reports_the_line_and_the_log() {
    let error = after_open("  ! write 100\n  > . 2:102 ack 1").unwrap_err();
    assert!(error.starts_with("5: > . 2:102 ack 1\n"), "{error}");
    assert!(error.contains("@10ms > P. 1:101 ack 1 win 65535"), "{error}");
}

#[test]
fn unknown_setting_is_refused() {
    let error = run("# clause: X\n# Shows.\nconfig: colour red\n  ! connect").unwrap_err();
    assert_eq!(error, "3: there is no setting `colour`");
}
