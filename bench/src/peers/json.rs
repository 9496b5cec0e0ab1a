//! The results as JSON: every sample of every round.

use serde_json::{Value, json};

use super::Test;
use super::results::Comparison;

/// Returns all results, with the machine and the versions.
#[must_use]
pub fn json(
    comparisons: &[Comparison],
    about: &[(String, String)],
    rounds: usize,
    seconds: f64,
    failures: &[String],
) -> Value {
    let machine: serde_json::Map<String, Value> =
        about.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
    json!({
        "machine": machine,
        "rounds": rounds,
        "seconds": seconds,
        "comparisons": comparisons.iter().map(comparison).collect::<Vec<_>>(),
        "failures": failures,
    })
}

fn comparison(comparison: &Comparison) -> Value {
    let peers = comparison.entries.iter().map(|entry| {
        let results = comparison.tests.iter().zip(&entry.cells);
        let results = results.filter(|(_, cell)| !cell.rounds.is_empty()).map(|(test, cell)| {
            let rounds: Vec<Value> = cell
                .rounds
                .iter()
                .map(|sample| sample.as_ref().map_or(Value::Null, super::Sample::json))
                .collect();
            match *test {
                Test::Stream { size, connections } => json!({
                    "test": "stream", "size": size, "connections": connections, "rounds": rounds,
                }),
                Test::PingPong { size } => {
                    json!({ "test": "ping-pong", "size": size, "rounds": rounds })
                }
            }
        });
        json!({
            "name": entry.peer.name(),
            "version": entry.version,
            "description": entry.peer.description(),
            "results": results.collect::<Vec<_>>(),
        })
    });
    json!({
        "setting": comparison.setting.title(),
        "peers": peers.collect::<Vec<_>>(),
        "missing": comparison.missing,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::{results, rounds};

    #[test]
    fn every_sample_is_kept() {
        let mut comparisons = [results::tests::comparison()];
        rounds::run(&mut comparisons, 2, 0.0, None, &mut vec![]);
        let json = json(&comparisons, &[("Cores".into(), "2".into())], 2, 0.5, &[]);
        assert_eq!(json["machine"]["Cores"], "2");
        let first = &json["comparisons"][0]["peers"][0]["results"][0];
        assert_eq!(first["rounds"].as_array().unwrap().len(), 2);
        assert_eq!((&first["size"], &first["rounds"][1]["rate_mops"]), (&json!(64), &json!(2.0)));
        assert_eq!(json["comparisons"][0]["missing"][0][0], "absent");
    }
}
