//! The table of settings in `docs/settings.md`.

use std::fs;
use std::path::Path;

use crate::setting::SETTINGS;

fn rows() -> String {
    let mut rows = String::new();
    for setting in SETTINGS {
        let words = setting.words.join(" ");
        let default = if setting.default.is_empty() {
            "-".to_owned()
        } else {
            format!("`{}`", setting.default)
        };
        rows += &format!(
            "| `{}` | `{}` | `--{} {}` | {} | {default} |\n",
            setting.name,
            setting.variable(),
            setting.option,
            words.replace('|', "\\|"),
            setting.help.replace('|', "\\|"),
        );
    }
    rows
}

/// `FERROWARP_UPDATE=1` rewrites the table.
#[test]
fn settings_are_documented() {
    const HEADING: &str = "|---|---|---|---|---|\n";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/settings.md");
    let text = fs::read_to_string(&path).unwrap();
    let start = text.find(HEADING).expect("the table") + HEADING.len();
    let lines = text[start..].split_inclusive('\n').take_while(|line| line.starts_with('|'));
    let end = start + lines.map(str::len).sum::<usize>();
    if std::env::var_os("FERROWARP_UPDATE").is_some_and(|value| value == "1") {
        fs::write(&path, [&text[..start], &rows(), &text[end..]].concat()).unwrap();
        return;
    }
    assert_eq!(&text[start..end], rows(), "run the test with FERROWARP_UPDATE=1");
}
