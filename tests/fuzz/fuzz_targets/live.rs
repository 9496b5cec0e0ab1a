//! Fuzz target: segments forged between two live ends.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| ferrowarp_tests::fuzz::live(data));
