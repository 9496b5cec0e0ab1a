//! Missing and duplicate parts of the build are reported as one line with its remedy.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// The build script of this build, the newest there is.
fn build_script() -> PathBuf {
    let packages = Path::new(env!("OUT_DIR")).ancestors().nth(2).unwrap();
    let scripts = fs::read_dir(packages).unwrap().filter_map(|package| {
        let package = package.unwrap();
        let is_ours = package.file_name().to_str()?.starts_with("ferrowarp-dpdk-sys-");
        let script = package.path().join("build-script-build");
        is_ours.then_some(script).filter(|script| script.exists())
    });
    scripts.max_by_key(|script| script.metadata().unwrap().modified().unwrap()).unwrap()
}

/// Prints a variable of the libdpdk that is installed.
fn pkg_config(argument: &str) -> String {
    let output = Command::new("pkg-config").args([argument, "libdpdk"]).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Runs the build script in a folder with these variables, and returns what cargo prints.
fn run(folder: &Path, variables: &[(&str, &str)]) -> Vec<String> {
    let out = folder.join("out");
    fs::create_dir_all(&out).unwrap();
    let target = format!("{}-unknown-linux-gnu", env::consts::ARCH);
    let mut command = Command::new(build_script());
    command.env("OUT_DIR", out).env("TARGET", &target).env("HOST", &target);
    command.env("OPT_LEVEL", "0").env("DEBUG", "false");
    command.env_remove("DOCS_RS").envs(variables.iter().copied());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let lines = String::from_utf8(output.stdout).unwrap();
    let said = lines.lines().filter_map(|line| line.strip_prefix("cargo::"));
    said.filter(|line| line.starts_with("error=") || line.starts_with("warning="))
        .map(str::to_owned)
        .collect()
}

/// Folders of a libdpdk.pc with a version, a folder of libraries and the headers installed.
struct Case {
    root: PathBuf,
}

impl Case {
    fn new(name: &str) -> Self {
        let root = env::temp_dir().join(format!("ferrowarp-build-{}-{name}", std::process::id()));
        fs::create_dir(&root).unwrap();
        Self { root }
    }

    /// Returns the folder, for PKG_CONFIG_PATH.
    fn libdpdk(&self, version: &str, libraries: &str, flags: &str) -> String {
        let text = format!(
            "libdir={libraries}\nName: DPDK\nDescription: -\nVersion: {version}\nCflags: {flags}\n"
        );
        fs::write(self.root.join("libdpdk.pc"), text).unwrap();
        self.root.to_str().unwrap().to_owned()
    }
}

impl Drop for Case {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

#[track_caller]
fn expect_one(said: &[String], kind: &str, parts: &[&str]) {
    let [line] = said else { panic!("{said:#?}") };
    assert!(line.starts_with(kind), "{line}");
    for part in parts {
        assert!(line.contains(part), "{part:?} in {line:?}");
    }
}

#[test]
fn absent_tools_and_packages_are_named() {
    let case = Case::new("absent");
    let none = case.root.to_str().unwrap();
    for (variables, parts) in [
        (&[("PKG_CONFIG", "/nonexistent/tool")][..], &["/nonexistent/tool", "pkg-config"][..]),
        (&[("PKG_CONFIG_LIBDIR", none), ("PKG_CONFIG_PATH", none)], &["libdpdk-dev", "not found"]),
        (&[("CC", "/nonexistent/cc")], &["/nonexistent/cc", "apt-get install gcc"]),
    ] {
        expect_one(&run(&case.root, variables), "error=", parts);
    }
}

#[test]
fn releases_that_do_not_fit_are_refused_and_newer_ones_accepted() {
    /// Header with the release.
    const CONFIG: &str = "rte_build_config.h";
    let flags = pkg_config("--cflags");
    let libraries = pkg_config("--variable=libdir");
    let installed = pkg_config("--modversion");
    let case = Case::new("release");
    let newer = case.root.join("header files");
    fs::create_dir(&newer).unwrap();
    let is_config = |folder: &&str| Path::new(folder).join(CONFIG).exists();
    let folder = flags.split(' ').filter_map(|flag| flag.strip_prefix("-I")).find(is_config);
    let text = fs::read_to_string(Path::new(folder.unwrap()).join(CONFIG)).unwrap();
    let text = text.replace("RTE_VER_YEAR ", "RTE_VER_YEAR 99 // ");
    fs::write(newer.join(CONFIG), text).unwrap();
    let newer = newer.display().to_string().replace(' ', "\\ ");
    let newer = format!("-I{newer} {flags}");
    for (version, flags, kind, parts) in [
        ("21.11.3", &flags, "error=", &["21.11.3 is too old", "PKG_CONFIG_PATH"][..]),
        ("later", &flags, "error=", &["\"later\"", "PKG_CONFIG_PATH"]),
        ("98.03.0", &flags, "error=", &["98.03.0", &installed[..5], "PKG_CONFIG_PATH"]),
        ("99.11.0-rc1", &newer, "warning=", &["99.11.0-rc1 is newer"]),
    ] {
        let folder = case.libdpdk(version, &libraries, flags);
        expect_one(&run(&case.root, &[("PKG_CONFIG_PATH", &folder)]), kind, parts);
    }
}

#[test]
fn absent_headers_and_libraries_are_named() {
    let (version, flags) = (pkg_config("--modversion"), pkg_config("--cflags"));
    let case = Case::new("library");
    let folder = case.libdpdk(&version, "/nonexistent", &flags);
    let path = ("PKG_CONFIG_PATH", folder.as_str());
    let said = run(&case.root, &[path]);
    expect_one(&said, "error=", &["/nonexistent/librte_ethdev.so is absent", "libdpdk-dev"]);
    let said = run(&case.root, &[path, ("CARGO_FEATURE_STATIC", "1")]);
    expect_one(&said, "error=", &[".a is absent", "-Ddefault_library=both"]);
    case.libdpdk(&version, &pkg_config("--variable=libdir"), "-I/nonexistent");
    let said = run(&case.root, &[path]);
    expect_one(&said, "error=", &["rte_alarm.h", "libdpdk-dev", "libclang-dev"]);
}
