//! Runs cases sequentially, and prints the outcome of each.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::time::Instant;

use crate::capture::{self, Capture};
use crate::interop::case::{Case, failure};
use crate::interop::guest::{GUEST_CARDS, GuestKind};
use crate::interop::tcp_analysis::{self, LostSegments};
use crate::interop::testbed::Testbed;
use crate::rows::Rows;

/// File name of a case's capture.
const CAPTURE_FILE: &str = "wire.pcap";

/// Runs `cases`, with one guest for consecutive ones of the same kind; each has its logs and
/// capture in a folder of its own below `folder`. Prints a line for each as it ends.
///
/// # Errors
/// If the guest does not boot, or printing fails.
pub fn run(cases: &[Case], folder: &Path) -> io::Result<Rows> {
    let mut opened: Option<Testbed> = None;
    let mut rows = Rows::new(cases.iter().map(|case| case.name.as_str()));
    for case in cases {
        let own = folder.join(case.name.replace('/', "."));
        fs::create_dir_all(&own)?;
        let testbed = match opened.take() {
            Some(testbed) if testbed.kind() == case.guest => opened.insert(testbed),
            // The previous guest is removed before the next boots.
            previous => {
                drop(previous);
                opened.insert(open(folder, case.guest)?)
            }
        };
        let began = Instant::now();
        let mut outcome = run_case(case, testbed, &own);
        if outcome.as_ref().is_err_and(|error| error.kind() == capture::DROPPED_PACKETS) {
            // The capture is incomplete then.
            outcome = run_case(case, testbed, &own);
        }
        if let Err(error) = &outcome
            && LostSegments::is_reason_of(error)
        {
            let first = error.to_string();
            outcome = run_case(case, testbed, &own)
                .map(|detail| format!("{detail}; run again: {first}"))
                .map_err(|again| failure(format!("{again}; and before: {first}")));
        }
        if outcome.is_err() && has_wrong_crc(&own.join(CAPTURE_FILE), testbed.guest_addr()) {
            // The connection cannot continue then.
            outcome = run_case(case, testbed, &own).map(|detail| {
                format!("{detail}; run again: siw had sent an FPDU with a wrong CRC")
            });
        }
        rows.add(&case.name, began, outcome)?;
    }
    Ok(rows)
}

fn open(folder: &Path, kind: GuestKind) -> io::Result<Testbed> {
    let testbed = Testbed::open(folder, kind)?;
    let (kernel, accel) = (testbed.guest.property("kernel"), testbed.guest.property("accel"));
    match kind {
        GuestKind::Siw => println!("siw of Linux {kernel} ({accel})"),
        GuestKind::Cards { has_iommu } => {
            let cards = GUEST_CARDS.join(", ");
            let without = if has_iommu { "" } else { ", its IOMMU off" };
            println!("{cards} in Linux {kernel} ({accel}){without}");
        }
    }
    Ok(testbed)
}

/// True if tshark finds an FPDU of `sender` with a wrong CRC.
fn has_wrong_crc(file: &Path, sender: IpAddr) -> bool {
    capture::dissect(file, sender, false).is_ok_and(|analysis| analysis.bad_crc > 0)
}

fn run_case(case: &Case, testbed: &mut Testbed, folder: &Path) -> io::Result<String> {
    testbed.configure(case, folder)?;
    let file = folder.join(CAPTURE_FILE);
    let (namespace, (sender, interface)) = (testbed.namespace(), testbed.captured());
    let capture = Capture::start_in_namespace(&namespace, &interface, case.packets_max, file)?;
    let detail = (case.body)(testbed);
    let file = capture.stop()?;
    let detail = detail?;
    let packets = tcp_analysis::check_capture(case, &file, sender)?;
    Ok(format!("{detail}; {packets}"))
}
