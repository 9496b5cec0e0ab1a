//! Fuzz target: TCP segments.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| ferrowarp_tests::fuzz::segment(data));
