//! `tailwater help NAME`: entries of the reference on standard output, and suggestions for names that have none.

use std::process::{Command, Output};

fn help(name: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tailwater")).args(["help", name]).output().unwrap()
}

#[test]
fn entries_are_printed_and_unknown_names_fail_with_a_suggestion() {
    let output = help("proxy_pass");
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("\nSyntax:   proxy_pass URL;\nContext:  location,"), "{text}");
    assert!(output.stderr.is_empty());

    let unknown = help("prxy_pass");
    assert_eq!(unknown.status.code(), Some(1));
    assert!(unknown.stdout.is_empty());
    let text = String::from_utf8(unknown.stderr).unwrap();
    assert!(text.contains("did you mean: tailwater help 'proxy_pass'?"), "{text}");
}
