use super::*;
use crate::perf::latency_stats::Latencies;

fn test_params(test: Test) -> TestParams {
    TestParams {
        test,
        device: "ring".to_owned(),
        qps: 2,
        tx_depth: 128,
        mtu: 1500,
        crc: true,
        markers: false,
        checksum: "not needed".to_owned(),
        bidirectional: false,
        verify: true,
    }
}

#[test]
fn set_rates_computes_bandwidth_and_message_rate() {
    let mut result = Measurement::new(&test_params(Test::WriteBw), 65536);
    result.set_rates(1000, 1000 * 65536, 10_000_000);
    assert!((result.bw_gbit_s - 52.4288).abs() < 1e-9);
    assert!((result.msg_rate_mops - 0.1).abs() < 1e-9);
    assert!((result.duration_s - 0.01).abs() < 1e-9);
    // A run of zero nanoseconds gives large figures, not a division by zero.
    result.set_rates(1, 1, 0);
    assert!(result.bw_gbit_s.is_finite());
}

#[test]
fn json_members_match_schema() {
    let mut latency = Latencies::new();
    latency.record(1500);
    let mut with = Measurement::new(&test_params(Test::SendLat), 2);
    with.lat_us = latency.summary();
    let without = Measurement::new(&test_params(Test::SendBw), 64);
    let environment = Environment::collect("ring");
    let results = [with, without];
    let report = Report { results: &results, environment: &environment, failure: None };
    let text = serde_json::to_string(&report).unwrap();
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();

    let mut members: Vec<&str> =
        value["results"][0].as_object().unwrap().keys().map(String::as_str).collect();
    members.sort_unstable();
    let mut expected = vec![
        "test",
        "size_bytes",
        "iterations",
        "qps",
        "mtu",
        "crc",
        "checksum",
        "markers",
        "duration_s",
        "bw_gbit_s",
        "msg_rate_mops",
        "lat_us",
        "bytes_verified",
        "errors",
    ];
    expected.sort_unstable();
    assert_eq!(members, expected);
    let mut latencies: Vec<&str> =
        value["results"][0]["lat_us"].as_object().unwrap().keys().map(String::as_str).collect();
    latencies.sort_unstable();
    assert_eq!(latencies, ["max", "min", "p50", "p90", "p99", "p999"]);
    assert_eq!(value["results"][0]["test"], "send-lat");
    assert!(value["results"][1]["lat_us"].is_null());
    assert!(value["environment"].is_object());
    assert!(value["failure"].is_null());
}

#[test]
fn columns_align_with_heading() {
    for test in [Test::WriteBw, Test::ReadLat] {
        let setting = test_params(test);
        let mut result = Measurement::new(&setting, 8 << 20);
        result.set_rates(5000, 5000 << 23, 3_000_000_000);
        if test.is_latency() {
            let mut latencies = Latencies::new();
            latencies.record(123_456);
            result.lat_us = latencies.summary();
        }
        let heading = setting.heading();
        let names = heading.lines().last().unwrap();
        // "percentile[usec]" belongs to the preceding name.
        let starts = |line: &str| -> Vec<usize> {
            let mut starts = Vec::new();
            let mut gap = 2;
            for (index, c) in line.char_indices() {
                if c == ' ' {
                    gap += 1;
                } else {
                    if gap >= 2 || (index < 24 && gap == 1) {
                        starts.push(index);
                    }
                    gap = 0;
                }
            }
            starts
        };
        assert_eq!(starts(names), starts(&result.line()), "\n{names}\n{}", result.line());
    }
}

#[test]
fn report_write_is_atomic() {
    let environment = Environment::collect("ring");
    let failure = Some("no answer".to_owned());
    let report = Report { results: &[], environment: &environment, failure };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.json");
    report.write(&path).unwrap();
    let value: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!(value["failure"], "no answer");
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
    assert!(report.write(&folder.path().join("missing/out.json")).is_err());
}
