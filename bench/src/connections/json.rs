//! The results as JSON.

use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};

use super::control::Latencies;
use super::memory::Share;
use super::results::{BYTES_LIMIT, IDLE_LIMIT, RATE_LIMIT, Results, kept, us};
use crate::baseline::report::host_json;
use crate::paired::pairs::Paired;

/// Returns all samples as JSON.
#[must_use]
pub fn json(results: &Results) -> Value {
    let paired = |pairs: &Paired, limit| {
        let ratio = pairs.ratio().map(|it| {
            json!({ "median": it.median, "interval": [it.low, it.high], "coverage": it.coverage,
                "kept": kept(&it, limit) })
        });
        json!({ "pairs": pairs.pairs, "ratio": ratio })
    };
    let mut value = json!({ "machine": host_json(), "failures": results.failures });
    if let Some((count, rows)) = &results.idle {
        let rows: Map<String, Value> = rows
            .iter()
            .map(|(name, pairs)| ((*name).to_owned(), paired(pairs, IDLE_LIMIT)))
            .collect();
        value["idle-beside-busy"] = json!({ "idle": count, "ns_per_write": rows });
    }
    if let Some(memory) = &results.memory {
        let share = |share: Share| json!({ "bytes": share.bytes, "allocations": share.count });
        let rows = memory.rows.iter().map(|row| {
            let beside = [0, 1].map(|end| memory.allocated_beside_slots(row, end));
            json!({ "requests_per_queue": row.depth, "resident_bytes": row.resident,
                "resident_beside_slots": memory.beside_slots(row), "handle_bytes": row.handle,
                "created": row.created.map(share), "connected": row.connected.map(share),
                "allocated_beside_slots": beside })
        });
        value["memory"] = json!({ "connections": memory.count, "limit_bytes": BYTES_LIMIT,
            "slots_bytes": memory.slots_len, "rows": rows.collect::<Vec<_>>() });
    }
    if let Some(many) = &results.many {
        let phases = many.phases.iter().map(|(name, seconds, resident)| {
            json!({ "phase": name, "seconds": seconds, "resident_bytes": resident })
        });
        value["many"] = json!({ "connections": many.count, "ports": many.ports,
            "resident_bytes_before": many.resident_before,
            "phases": phases.collect::<Vec<_>>() });
    }
    if let Some((count, open, rates)) = &results.setup_rate {
        value["setup-rate"] = json!({ "connections": count, "open": open,
            "set_ups_per_second": paired(&rates.set_ups, RATE_LIMIT),
            "ends_per_second": paired(&rates.ends, RATE_LIMIT) });
    }
    if let Some(control) = &results.control {
        let latencies = |of: &Histogram<u64>| {
            json!({ "p50_us": us(of, 0.5), "p99_us": us(of, 0.99),
                "max_us": of.max() as f64 / 1e3, "count": of.len() })
        };
        let kind = |it: &Latencies| {
            json!({ "connect": latencies(&it.connect), "deregister": latencies(&it.deregister),
                "load_writes": it.load, "drive_round_us": it.drive_round / 1e3,
                "core_waits_ms": it.core_waits.map(|of| of.map(|ns| ns as f64 / 1e6)) })
        };
        let rounds = control.rounds.iter().map(|round| round.each_ref().map(kind));
        value["control-latency"] = json!({ "shards": control.shards, "drivers": control.drivers,
            "rounds": rounds.collect::<Vec<_>>() });
    }
    if let Some(soak) = &results.soak {
        let lines = soak.lines.iter().map(|line| {
            let [made, ended, broken, refused, lost] = line.counts;
            let [dropped, crc, ooo, shortages, overruns] = line.losses;
            json!({ "seconds": line.seconds, "made": made, "ended": ended, "broken": broken,
                "refused": refused, "peers_lost": lost, "verified_bytes": line.verified,
                "resident_bytes": line.resident, "connections": line.connections,
                "frames_free": line.frames_free, "frames_dropped": dropped, "crc_errors": crc,
                "ooo_dropped": ooo, "frame_shortages": shortages, "cq_overruns": overruns })
        });
        value["soak"] = json!({ "lines": lines.collect::<Vec<_>>(),
            "resident_bytes": soak.resident, "is_flat": soak.is_flat(),
            "failures": soak.failures });
    }
    value
}
