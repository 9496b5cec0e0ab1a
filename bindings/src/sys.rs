//! What bindgen made of DPDK's headers, and the shim's functions. Raw: prefer the types above it.
#![allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unnameable_types,
    clippy::all,
    clippy::ptr_as_ptr,
    clippy::cast_possible_truncation,
    clippy::undocumented_unsafe_blocks,
    clippy::multiple_unsafe_ops_per_block,
    clippy::missing_safety_doc,
    reason = "generated code"
)]

include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
