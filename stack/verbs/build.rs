//! Generates the types of libibverbs and librdmacm from their headers, and checks their layout in
//! C and in Rust.
//!
//! Each problem is reported as one line with its remedy.

use std::env;
use std::fmt::Write;
use std::fs;
use std::panic::{self, AssertUnwindSafe};
use std::path::PathBuf;

use bindgen::callbacks::{DeriveTrait, ImplementsTrait, ParseCallbacks};

/// Sizes and offsets, in C and in Rust.
const LAYOUT: &str = "abi/layout.tsv";

const C_FILES: [&str; 3] = ["abi/private.c", "abi/unsupported.c", "abi/wait.c"];

/// Types that the libc crate has.
const OF_LIBC: [&str; 8] = [
    "pthread_cond_t",
    "pthread_mutex_t",
    "sockaddr",
    "sockaddr_in",
    "sockaddr_in6",
    "sockaddr_storage",
    "socklen_t",
    "timespec",
];

fn main() {
    println!("cargo::rerun-if-env-changed=LIBCLANG_PATH");
    println!("cargo::rerun-if-changed=abi");
    if let Err(reason) = build() {
        println!("cargo::error={reason}");
    }
}

fn build() -> Result<(), String> {
    let layout = fs::read_to_string(LAYOUT).map_err(|error| format!("{LAYOUT}: {error}"))?;
    let layout = layout.lines().filter(|line| !line.starts_with('#')).map(Entry::parse);
    let layout = layout.collect::<Result<Vec<_>, _>>()?;
    generate()?;
    let (mut rust, mut c) = (String::new(), "#include \"abi/wrapper.h\"\n".to_owned());
    for entry in &layout {
        writeln!(rust, "{}", entry.in_rust()).expect("a String takes all");
        writeln!(c, "{}", entry.in_c()).expect("a String takes all");
    }
    fs::write(out("layout.rs"), rust).expect("OUT_DIR is writable");
    fs::write(out("layout.c"), c).expect("OUT_DIR is writable");
    let mut build = cc::Build::new();
    build.file(out("layout.c")).include(".").files(C_FILES).warnings(true);
    // `wait.c` is a cancellation point.
    build.flag("-fexceptions");
    build.try_compile("ferrowarp_verbs_abi").map_err(|error| {
        format!("a C compiler is needed (Debian, Ubuntu: apt-get install gcc libc6-dev): {error}")
    })
}

/// Returns the path of a generated file.
fn out(file: &str) -> PathBuf {
    PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join(file)
}

/// A line of the layout: the bytes that a type has, or that are before a member.
struct Entry<'a> {
    type_name: &'a str,
    member: Option<&'a str>,
    /// One for each of the releases that differ.
    values: Vec<i32>,
    /// The member that the bytes are counted from.
    base: Option<&'a str>,
}

impl<'a> Entry<'a> {
    fn parse(line: &'a str) -> Result<Self, String> {
        let mut fields = line.split('\t');
        let mut next = || fields.next().ok_or(format!("{LAYOUT}: too few fields in: {line}"));
        let (type_name, member, values) = (next()?, next()?, next()?);
        let values = values.split('|').map(str::parse).collect::<Result<_, _>>();
        let values = values.map_err(|error| format!("{LAYOUT}: {error} in: {line}"))?;
        let member = Some(member).filter(|member| *member != "-");
        Ok(Self { type_name, member, values, base: fields.next() })
    }

    /// Returns the name of the quantity.
    fn name(&self) -> String {
        match self.member {
            None => format!("size of {}", self.type_name),
            Some(member) => format!("offset of {}.{member}", self.type_name),
        }
    }

    /// Returns the condition, given expressions for the quantity and the one it is counted from.
    fn condition(&self, quantity: &str, base: &str) -> String {
        let equal = |value| format!("{quantity} == {base}{value}");
        self.values.iter().map(equal).collect::<Vec<_>>().join(" || ")
    }

    fn in_rust(&self) -> String {
        // As bindgen writes a keyword.
        let escaped = |member| if member == "priv" { "priv_" } else { member };
        let offset = |member| format!("offset_of!({}, {}) as i32", self.type_name, escaped(member));
        let quantity = match self.member {
            None => format!("size_of::<{}>() as i32", self.type_name),
            Some(member) => offset(member),
        };
        let base = self.base.map_or_else(String::new, |base| offset(base) + " + ");
        format!("const _: () = assert!({}, \"{}\");", self.condition(&quantity, &base), self.name())
    }

    fn in_c(&self) -> String {
        let offset = |member| format!("(int) offsetof(struct {}, {member})", self.type_name);
        let quantity = match self.member {
            None => format!("(int) sizeof(struct {})", self.type_name),
            Some(member) => offset(member),
        };
        let base = self.base.map_or_else(String::new, |base| offset(base) + " + ");
        format!("_Static_assert({}, \"{}\");", self.condition(&quantity, &base), self.name())
    }
}

/// The types of the libc crate can be copied: unions have them.
#[derive(Debug)]
struct CopyOfLibc;

impl ParseCallbacks for CopyOfLibc {
    fn blocklisted_type_implements_trait(
        &self,
        _: &str,
        derive: DeriveTrait,
    ) -> Option<ImplementsTrait> {
        matches!(derive, DeriveTrait::Copy).then_some(ImplementsTrait::Yes)
    }
}

/// Generates the types and constants that `src/abi.rs` includes.
fn generate() -> Result<(), String> {
    let builder = bindgen::Builder::default()
        .parse_callbacks(Box::new(bindgen::CargoCallbacks::new()))
        .parse_callbacks(Box::new(CopyOfLibc))
        .header("abi/wrapper.h")
        .use_core()
        .allowlist_type("ibv_.*|rdma_.*|verbs_context")
        .allowlist_var("IBV_.*|RDMA_.*|RAI_.*")
        .ignore_functions()
        .blocklist_type(OF_LIBC.join("|"))
        // Their parts.
        .blocklist_type("__(pthread|atomic_wide|time|syscall|socklen).*|in6?_addr.*")
        .raw_line(format!("use libc::{{{}}};", OF_LIBC.join(",")))
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .derive_default(true)
        .derive_debug(false)
        .layout_tests(false)
        .generate_comments(false)
        .formatter(bindgen::Formatter::None);
    // Without libclang it panics, with what it looked for.
    panic::set_hook(Box::new(|_| {}));
    let bindings = panic::catch_unwind(AssertUnwindSafe(|| builder.generate()));
    let _ = panic::take_hook();
    let bindings = bindings.map_err(|_| {
        "libclang is absent (Debian, Ubuntu: apt-get install libclang-dev; elsewhere: set \
         LIBCLANG_PATH to its folder)"
    })?;
    let bindings = bindings.map_err(|error| {
        let error = error.to_string();
        format!(
            "libibverbs-dev and librdmacm-dev are absent (Debian, Ubuntu: apt-get install \
             libibverbs-dev librdmacm-dev): {}",
            error.lines().next().unwrap_or_default()
        )
    })?;
    bindings.write_to_file(out("abi.rs")).expect("OUT_DIR is writable");
    Ok(())
}
