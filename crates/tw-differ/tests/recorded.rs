//! Tailwater against recorded answers of nginx.

use std::env;
use std::path::{Path, PathBuf};

use tw_testkit::Lacks;

/// The server that was built with this test; `cargo test --workspace` builds both.
fn binary() -> Option<PathBuf> {
    let test = env::current_exe().ok()?;
    let binary = test.parent()?.parent()?.join("tailwater");
    binary.is_file().then_some(binary)
}

#[test]
fn recorded_answers_of_nginx_are_tailwaters() {
    let Some(binary) = binary() else {
        tw_testkit::leave_out(Lacks::Run, "the program tailwater was not built");
        return;
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let words = ["check".to_owned(), "--binary".to_owned(), binary.display().to_string()];
    tw_differ::run(&words, root).unwrap();
}
