use super::*;
use crate::paired::rows;

/// Results of the first row, write-bw of 64 KiB: frozen bound, iwperf, best bound.
fn result(shares: &[f64]) -> RowResult {
    let row = rows::all(0, None, false).remove(0);
    let sample = |gbit_s| Sample { gbit_s, ..Sample::default() };
    let pair = |&share: &f64| {
        let of = |contender: &Contender| match contender {
            Contender::Frozen => sample(50.0),
            Contender::Best => sample(100.0),
            _ => sample(50.0 * share),
        };
        row.contenders.iter().map(of).collect()
    };
    let pairs = shares.iter().map(pair).collect();
    RowResult { pairs, row, kernels: Some(["crc32c".to_owned(), "fused".to_owned()]) }
}

#[test]
fn shares_are_taken_pair_by_pair() {
    let result = result(&[0.5, 0.8, 0.7]);
    let outcomes = result.outcomes();
    assert_eq!(outcomes.len(), 2);
    let of = |outcome: &Outcome| (outcome.interval.low, outcome.interval.median);
    assert_eq!(of(&outcomes[0]), (0.5, 0.7));
    assert_eq!(of(&outcomes[1]), (0.25, 0.35));
    assert_eq!((outcomes[0].subject, outcomes[0].reference), (35.0, 50.0));
}

/// Twice 3 is compared with 1.5 times 40.
#[test]
fn gains_are_compared_with_gains() {
    let rows = rows::all(0, Some([0, 1]), false);
    let row = rows.into_iter().find(|row| row.name == "write-bw-64K-1500-shards-q8").unwrap();
    let of = |contender: &Contender| match contender {
        Contender::FrozenOnOne => 40.0,
        Contender::Frozen => 60.0,
        Contender::IwperfOnOne(_) => 3.0,
        _ => 6.0,
    };
    let sample = |contender| Sample { gbit_s: of(contender), ..Sample::default() };
    let pairs = vec![row.contenders.iter().map(sample).collect()];
    let result = RowResult { pairs, row, kernels: None };
    let medians: Vec<f64> =
        result.outcomes().iter().map(|outcome| outcome.interval.median).collect();
    assert_eq!(medians, [2.0 / 1.5, 2.0, 1.5]);
    let text = table(&[result]);
    assert!(text.contains("| gain of write-bw 6.00 Gb/s | gain of frozen bound 60.00 |"), "{text}");
}

#[test]
fn limit_is_kept_only_by_the_whole_interval() {
    let repeated = |shares: [f64; 3]| result(&shares.repeat(2));
    let kept = |shares| repeated(shares).outcomes()[0].kept();
    assert_eq!(kept([0.70, 0.75, 0.8]), Some(Kept::Yes));
    assert_eq!(kept([0.60, 0.65, 0.69]), Some(Kept::No));
    assert_eq!(kept([0.60, 0.75, 0.8]), Some(Kept::Open));
    // Three values give no interval of 95 %.
    assert_eq!(result(&[0.70, 0.75, 0.8]).outcomes()[0].kept(), Some(Kept::Open));
    assert_eq!(result(&[0.7]).outcomes()[1].kept(), None);
    let mut at_most = repeated([0.70, 0.75, 0.8]);
    at_most.row.comparisons[0].wanted = Some(Wanted::AtMost(0.8));
    assert_eq!(at_most.outcomes()[0].kept(), Some(Kept::Yes));
    at_most.row.comparisons[0].wanted = Some(Wanted::AtMost(0.6));
    assert_eq!(at_most.outcomes()[0].kept(), Some(Kept::No));
}

#[test]
fn reports_have_ratio_interval_and_limit() {
    let results = [result(&[0.5, 0.8, 0.7]), result(&[])];
    let text = markdown(&results, 1.0);
    let row = "| write-bw-64K-1500-one | write-bw 35.00 Gb/s | frozen bound 50.00 | 0.700 | 0.500 \
               to 0.800 (75.0 %) | at least 0.70 | open | 3 |";
    assert!(text.contains(row), "{text}");
    assert!(text.contains("| write-bw-64K-1500-one | failed |"), "{text}");
    assert!(text.contains("| write-bw-64K-1500-one | crc32c | fused |"), "{text}");
    let json = json(&results, 1.0, &["why".to_owned()]);
    assert_eq!(json["rows"][0]["comparisons"][0]["median"], 0.7);
    assert_eq!(json["rows"][0]["pairs"][1]["write-bw"]["gbit_s"], 40.0);
    assert_eq!(json["failures"][0], "why");
}
