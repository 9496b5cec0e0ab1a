//! Fuzz target: DDP and RDMAP headers and Terminates.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| ferrowarp_tests::fuzz::headers(data));
