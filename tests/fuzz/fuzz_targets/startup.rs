//! Fuzz target: MPA startup frames.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| ferrowarp_tests::fuzz::startup(data));
