//! The program in C that owns the EAL and lends queues to the stack (`tests/host_program`).

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::process;
use crate::workspace::root;

const TIMEOUT: Duration = Duration::from_secs(120);

/// Message if [`build`] finds no library: the missing file, and the command that builds it.
pub const BUILD_HINT: &str = "no libhost_stack.a; cargo build --profile test -p ferrowarp-tests \
                              --features device --example host_stack";

/// System libraries of Rust's standard library, as `--print native-static-libs` lists them.
const RUST_LIBRARIES: [&str; 6] = ["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl"];

/// Libraries with functions that the stack calls, which libdpdk.pc leaves out as plug-ins.
const DRIVERS: [&str; 2] = ["-lrte_net_ring", "-lrte_bus_vdev"];

/// Compiles the program, and returns its path; `None` without the library that it links.
///
/// # Errors
/// With the compiler's output.
pub fn build() -> io::Result<Option<PathBuf>> {
    let Some(library) = process::program("examples/libhost_stack.a") else { return Ok(None) };
    // Next to the library. Renamed, because another process may run the present one.
    let program = library.with_file_name("host_program");
    let new = program.with_extension(std::process::id().to_string());
    compile(&library, &new)?;
    std::fs::rename(&new, &program)?;
    Ok(Some(program))
}

fn compile(library: &Path, program: &Path) -> io::Result<()> {
    let flags = Command::new("pkg-config").args(["--cflags", "--libs", "libdpdk"]).output()?;
    let flags = String::from_utf8_lossy(&flags.stdout).into_owned();
    let (compiling, linking): (Vec<_>, Vec<_>) =
        flags.split_whitespace().partition(|flag| !flag.starts_with("-l"));
    let mut gcc = Command::new("gcc");
    gcc.args(["-O2", "-g", "-Wall", "-Wextra", "-Werror"]).args(compiling);
    for entry in root().join("tests/host_program").read_dir()? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "c") {
            gcc.arg(path);
        }
    }
    gcc.arg(library).args(linking).args(DRIVERS).args(RUST_LIBRARIES);
    let built = process::run(gcc.arg("-o").arg(program), TIMEOUT)?;
    if built.success() {
        return Ok(());
    }
    Err(io::Error::other(format!("{gcc:?}\n{}", built.output)))
}
