//! One end of a measured connection, of the kernel's TCP or of ours. Both carry the same FPDUs; the
//! kernel's end uses the independent peer for the MPA startup exchange.
//!
//! A receiver prints one line of JSON after the measured time: the bytes of messages received in
//! it. It continues to receive until it is killed, so that frames in flight are delivered.
//!
//! A requester repeatedly sends a message and waits for one in return, and prints the time of each
//! of these exchanges.

mod connections;
mod exchange;
mod kernel;
mod message;
mod meter;
mod options;
mod verbs_end;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Parser as _;

use crate::meter::MeasureWindow;
use crate::options::{Between, Command, EndArgs, Options};

fn main() -> ExitCode {
    match run(Options::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tcp-end: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::Send(EndArgs { address, dev: Some(dev), ip: Some(ip) }) => {
            verbs_end::send(&dev, ip, address)
        }
        Command::Send(EndArgs { address, .. }) => kernel::send(address),
        Command::Receive { end, warm_up, seconds } => {
            let window = MeasureWindow {
                warm_up: Duration::from_secs_f64(warm_up),
                seconds: Duration::from_secs_f64(seconds),
            };
            match end {
                EndArgs { address, dev: Some(dev), ip: Some(ip) } => {
                    verbs_end::receive(&dev, ip, address.port(), window)
                }
                EndArgs { address, .. } => kernel::receive(address, window),
            }
        }
        Command::Request { end, exchanges } => match end {
            EndArgs { address, dev: Some(dev), ip: Some(ip) } => {
                verbs_end::request(&dev, ip, address, exchanges)
            }
            EndArgs { address, .. } => kernel::request(address, exchanges),
        },
        Command::Respond(EndArgs { address, dev: Some(dev), ip: Some(ip) }) => {
            verbs_end::respond(&dev, ip, address.port())
        }
        Command::Respond(EndArgs { address, .. }) => kernel::respond(address),
        Command::Connections { between, count, batch } => {
            let batch = batch.clamp(1, count.max(1));
            let rate = match between {
                Between::Kernel => connections::kernel(count, batch),
                Between::Ring => connections::ring(count, batch),
                Between::OursToKernel => connections::ours_to_kernel(count, batch),
                Between::KernelToOurs => connections::kernel_to_ours(count, batch),
            }?;
            println!("{}", serde_json::json!({"connections_s": rate}));
            Ok(())
        }
    }
}
