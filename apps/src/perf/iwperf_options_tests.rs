use super::*;
use crate::perf::control::ENDLESS_MS;

fn loop_args(line: &str) -> Result<(Test, TestArgs), clap::Error> {
    let words = ["iwperf", "loop"].into_iter().chain(line.split_whitespace());
    let Command::Loop { test, test_args, .. } = IwperfOptions::try_parse_from(words)?.command
    else {
        panic!("not the loop");
    };
    Ok((test, test_args))
}

#[test]
fn clap_definition_is_valid() {
    use clap::CommandFactory;
    IwperfOptions::command().debug_assert();
}

#[test]
fn defaults_match_perftest() {
    for (name, size, iterations) in [
        ("write-bw", 65536, 5000),
        ("read-bw", 65536, 1000),
        ("send-bw", 65536, 1000),
        ("write-lat", 2, 1000),
        ("read-lat", 2, 1000),
        ("send-lat", 2, 1000),
        ("atomic-bw", 8, 1000),
        ("atomic-lat", 8, 1000),
    ] {
        let (test, args) = loop_args(name).unwrap();
        assert_eq!(test.name(), name);
        assert_eq!(Test::from_code(test.code()), Some(test));
        assert_eq!(args.sizes(test), [size]);
        assert_eq!(args.run(test, size).iterations, iterations);
        assert_eq!(args.tx_depth, 128);
        assert_eq!(args.flags(), FLAG_CRC);
    }
    assert_eq!(PORT, 18515);
    assert_eq!(Test::from_code(0), None);
}

#[test]
fn all_sizes_span_2_bytes_to_8_mib() {
    let (test, args) = loop_args("send-bw -a").unwrap();
    let sizes = args.sizes(test);
    assert_eq!((sizes[0], sizes[22], sizes.len()), (2, 8 << 20, 23));
    assert_eq!(args.span(test), 8 << 20);
}

#[test]
fn verify_slots_are_bounded_by_memory() {
    let (test, args) = loop_args("write-bw --verify -t 64").unwrap();
    let run = args.run(test, 100);
    assert_eq!((run.slots, run.credits, run.stride), (64, 64, 128));
    let large = args.run(test, 8 << 20);
    assert_eq!((large.slots, large.credits), (64, 64));
    let larger = args.run(test, 32 << 20);
    assert_eq!((larger.slots, larger.credits), (32, 32));
    let unverified = loop_args("write-bw").unwrap().1.run(test, 100);
    assert_eq!((unverified.slots, unverified.credits), (1, 0));
}

#[test]
fn send_credits_do_not_exceed_receive_depth() {
    let (test, args) = loop_args("send-bw -t 16").unwrap();
    assert_eq!(args.run(test, 64).credits, args.rx_depth(test));
    let (test, args) = loop_args("send-bw -t 16 --verify").unwrap();
    assert!(args.run(test, 64).credits <= args.rx_depth(test));
}

#[test]
fn receives_bound_credits_and_lists() {
    let (test, args) = loop_args("send-bw -t 16 -r 5").unwrap();
    assert_eq!((args.rx_depth(test), args.run(test, 64).credits), (5, 5));
    let (test, args) = loop_args("send-bw -t 16 -r 5 --verify").unwrap();
    assert_eq!((args.run(test, 64).slots, args.run(test, 64).credits), (16, 5));
    let (test, args) = loop_args("send-bw -q 3 -t 16 -r 16 --use-srq").unwrap();
    assert_eq!((args.rx_depth(test), args.flags()), (5, FLAG_CRC | FLAG_SRQ));
    // Of 18 credits the peer may owe 3, because it returns 4 at a time.
    for (list, fits) in [(15, true), (16, false)] {
        let (test, args) = loop_args(&format!("send-bw -t 18 -r 18 -l {list}")).unwrap();
        assert_eq!(args.check(test).is_ok(), fits, "{list}");
    }
}

#[test]
fn last_of_each_list_is_signaled_unless_chosen() {
    for (line, post_list, cq_mod) in [
        ("write-bw", 0, 0),
        ("write-bw -Q 100", 0, 100),
        ("write-bw -l 16", 16, 16),
        ("write-bw --post_list 16 --cq-mod 4", 16, 4),
        ("read-bw -l 128 -Q 1", 128, 1),
    ] {
        let (test, args) = loop_args(line).unwrap();
        args.check(test).unwrap();
        let run = args.run(test, 64);
        assert_eq!((run.post_list, run.cq_mod), (post_list, cq_mod), "{line}");
    }
}

#[test]
fn endless_run_prints_lines() {
    let seconds = |count| Some(Duration::from_secs(count));
    for (line, is_endless, interval) in [
        ("write-bw", false, None),
        ("write-bw -D 7", false, None),
        ("write-bw -D 7 -i 2", false, seconds(2)),
        ("write-bw --run_infinitely", true, seconds(5)),
        ("write-bw --run-infinitely -D 2", true, seconds(2)),
        ("write-bw --run_infinitely -i 3", true, seconds(3)),
    ] {
        let (test, args) = loop_args(line).unwrap();
        args.check(test).unwrap();
        let run = args.run(test, 64);
        assert_eq!(run.iterations == 0 && run.duration_ms == ENDLESS_MS, is_endless, "{line}");
        assert_eq!(args.length.interval(), interval, "{line}");
    }
}

#[test]
fn options_without_effect_are_accepted() {
    let line = "write-bw -R -z -F -N -x 3 -c RC --report_gbits --com_rdma_cm";
    assert!(loop_args("write-bw -c UD").is_err());
    let line = line.replace("-z ", "");
    let (test, args) = loop_args(&line).unwrap();
    args.check(test).unwrap();
    assert!(args.perftest.comm_rdma_cm && args.perftest.report_gbits);
    let server = "iwperf server --dev tap:x0 -R -z -F -N -x 3 -c RC --report_gbits";
    IwperfOptions::try_parse_from(server.split(' ')).unwrap();
}

#[test]
fn queue_pairs_default_to_one_for_each_shard() {
    for (line, qps) in [
        ("write-bw", 1),
        ("write-bw --shards 3", 3),
        ("write-lat --shards 3", 3),
        ("write-bw --shards 3 -q 8", 8),
        ("write-bw -q 65536 -t 1 -s 64", 65_536),
        ("write-bw -q 65536 -t 1 -s 1M --shared-buffer", 65_536),
    ] {
        let (test, args) = loop_args(line).unwrap();
        args.check(test).unwrap();
        assert_eq!(args.qps(), qps, "{line}");
    }
    let (test, args) = loop_args("send-bw --shards 3 -q 2").unwrap();
    assert_eq!(
        args.check(test).unwrap_err().to_string(),
        "3 shards for 2 queue pairs: give -q 3 or more, or fewer --shards"
    );
}

#[test]
fn conflicting_options_are_rejected() {
    for line in [
        "write-bw -s 1 -a",
        "write-bw -n 1 -D 1",
        "write-bw -q 0",
        "write-bw -q 65537",
        "write-bw --shards 0",
        "write-bw --shards 65",
        "write-bw --shared-buffer --verify",
        "write-bw -n 0",
        "write-bw -t 0",
        "write-bw --run_infinitely -n 5",
        "write-bw --run_infinitely -a",
        "write-bw -i 0",
        "write-bw -l 0",
        "write-bw -Q 0",
        "write-bw -I 257",
        "send-bw -r 0",
        "send-bw -r 16385",
        "write-bwx",
        "",
    ] {
        assert!(loop_args(line).is_err(), "{line}");
    }
    for line in [
        "write-lat -q 2",
        "send-lat -b",
        "write-lat --shared-buffer",
        "write-bw --hdr x",
        "send-bw -q 256 -s 1024M",
        "send-bw -q 65536",
        "send-bw --shards 3 -q 2",
        "read-lat --shards 2 -q 1",
        "write-bw -A CMP_AND_SWAP",
        "atomic-bw -s 16",
        "atomic-lat -a",
        "send-bw --write-with-imm",
        "write-lat --write-with-imm",
        "write-bw --mpa-revision 0 --no-crc",
        "write-bw --mpa-revision 1 --peer-to-peer write",
        "write-bw --mpa-revision 0 --write-with-imm",
        "atomic-lat --mpa-revision 0",
        "write-bw --run_infinitely -i 1 -D 1",
        "send-lat --run_infinitely",
        "send-lat -D 5 -i 1",
        "write-bw -l 129",
        "write-bw -Q 129",
        "write-bw -l 100 -Q 3",
        "send-bw --verify -l 128",
        "send-lat -l 2",
        "read-lat -Q 2",
        "read-bw -I 8",
        "atomic-lat -I 8",
        "write-bw -r 8",
        "read-bw --verify -r 8",
        "read-bw --use-srq",
        "send-bw -q 9 --use-srq -r 8",
    ] {
        let (test, args) = loop_args(line).unwrap();
        assert!(args.check(test).is_err(), "{line}");
    }
}
