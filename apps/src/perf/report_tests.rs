use super::*;
use crate::perf::latency_stats::Latencies;
use crate::perf::shard_report::merge;

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
        clock: "TSC, 11 ns per reading".to_owned(),
        bidirectional: false,
        verify: true,
        queues: QueueArgs::default(),
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
    assert!(value["environment"]["clock"].is_string());
    assert!(value["failure"].is_null());
}

#[test]
fn heading_names_the_queue_options_that_were_given() {
    let mut setting = test_params(Test::SendBw);
    let lines = setting.heading().lines().count();
    assert!(!setting.heading().contains("CQ Moderation"));
    (setting.queues.cq_mod, setting.queues.use_srq) = (Some(100), true);
    let heading = setting.heading();
    assert!(heading.contains("\n CQ Moderation   : 100\n Using SRQ       : ON\n"), "{heading}");
    assert_eq!(heading.lines().count(), lines + 2);
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
fn report_is_written_after_a_failure() {
    let environment = Environment::collect("ring");
    let failure = Some("no answer".to_owned());
    let report = Report { results: &[], environment: &environment, failure };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.json");
    report.write(OutputFile::open(&path).unwrap()).unwrap();
    let value: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!(value["failure"], "no answer");
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
}

#[test]
fn shards_add_up_over_the_time_of_the_slowest() {
    let part = |shard, messages, nanoseconds, latency| {
        let mut result = Measurement::new(&test_params(Test::SendLat), 1000);
        result.set_rates(messages, messages * 1000, nanoseconds);
        (result.qps, result.shard, result.errors) = (1, shard, 1);
        (result.bytes_verified, result.frames_forwarded) = (10, 7);
        result.peak_gbit_s = 2.0;
        let mut latencies = Latencies::new();
        latencies.record(latency);
        result.lat_us = latencies.summary();
        result.latencies = Some(latencies);
        result
    };
    let parts = [part(0, 100, 1_000_000, 1000), part(3, 300, 2_000_000, 2000)];
    let total = merge(&parts, 2);
    assert_eq!((total.iterations, total.qps, total.bytes_verified, total.errors), (400, 2, 20, 2));
    assert!((total.duration_s - 0.002).abs() < 1e-12 && (total.bw_gbit_s - 1.6).abs() < 1e-9);
    assert!((total.msg_rate_mops - 0.2).abs() < 1e-9 && (total.peak_gbit_s - 4.0).abs() < 1e-9);
    let latencies = total.lat_us.unwrap();
    assert_eq!((latencies.min, latencies.max), (1.0, 2.0));
    let text = serde_json::to_string(&total).unwrap();
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    let shard = value["shards"][1].as_object().unwrap();
    let mut members: Vec<&str> = shard.keys().map(String::as_str).collect();
    members.sort_unstable();
    let expected = [
        "bw_gbit_s",
        "duration_s",
        "frames_forwarded",
        "iterations",
        "lat_us",
        "msg_rate_mops",
        "qps",
        "shard",
    ];
    assert_eq!(members, expected);
    assert_eq!((&shard["shard"], &shard["iterations"]), (&3.into(), &300.into()));
    let line = total.shards[1].line();
    assert_eq!(line, "   shard 3: 1 qps, 2.00 usec typical, 2.00 at 99%, 7 frames forwarded");
}
