//! `cargo xtask conformance`: nginx's public test suite, run against nginx and against Tailwater.
//!
//! A file counts if nginx passes it here and it needs none of the features in [`BEYOND`]. The suite finds its programs in
//! `TEST_NGINX_BINARY` and says what it found in the Test Anything Protocol.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{Failure, root};

/// Directives of features that Tailwater does not have yet. A file that mentions one is not counted.
const BEYOND: &[&str] = &[
    "geoip_country",
    "http3",
    "image_filter",
    "js_content",
    "js_set",
    "mail",
    "perl",
    "perl_set",
    "quic",
    "stream",
    "xml_entities",
    "xslt_stylesheet",
];

/// Behind a check that is expected to fail, in the Test Anything Protocol.
const EXPECTED_TO_FAIL: &str = concat!("# TO", "DO");

/// What came of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Found {
    Passed,
    /// Why it was left out.
    Skipped(String),
    /// The names of the checks that failed.
    Failed(Vec<String>),
}

/// What is run, and against what.
#[derive(Default)]
struct Options {
    suite: Option<PathBuf>,
    peer: Option<PathBuf>,
    binary: Option<PathBuf>,
    files: Vec<String>,
}

pub(crate) fn run(words: &[String]) -> Result<(), Failure> {
    let options = options(words)?;
    let suite = options.suite.ok_or("--suite DIRECTORY is missing: a copy of nginx's test suite")?;
    let binary = options.binary.unwrap_or_else(|| root().join("target/debug/tailwater"));
    let files = if options.files.is_empty() { counted(&suite)? } else { options.files };
    let (mut in_scope, mut passed) = (0, 0);
    for file in &files {
        if let Some(peer) = &options.peer
            && ask(&suite, file, peer)? != Found::Passed
        {
            println!("-     {file}: nginx does not pass it here");
            continue;
        }
        in_scope += 1;
        match ask(&suite, file, &binary)? {
            Found::Passed => {
                passed += 1;
                println!("ok    {file}");
            }
            Found::Skipped(why) => println!("skip  {file}: {why}"),
            Found::Failed(checks) => println!("FAIL  {file}: {}", checks.join("; ")),
        }
    }
    println!("{passed} of {in_scope} files pass");
    Ok(())
}

fn options(words: &[String]) -> Result<Options, Failure> {
    let mut options = Options::default();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut path = || words.next().map(PathBuf::from).ok_or(format!("{word} needs a path"));
        match word.as_str() {
            "--suite" => options.suite = Some(path()?),
            "--peer" => options.peer = Some(path()?),
            "--binary" => options.binary = Some(path()?),
            file if !file.starts_with('-') => options.files.push(file.to_owned()),
            other => return Err(format!("unknown option {other}")),
        }
    }
    Ok(options)
}

/// The files that need no feature that is not there, by name.
fn counted(suite: &Path) -> Result<Vec<String>, Failure> {
    let mut files = Vec::new();
    for entry in fs::read_dir(suite).map_err(|e| format!("{}: {e}", suite.display()))? {
        let path = entry.map_err(|e| e.to_string())?.path();
        if path.extension().is_some_and(|extension| extension == "t") {
            let text = fs::read(&path).map_err(|e| e.to_string())?;
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if !needs_more(&String::from_utf8_lossy(&text)) {
                files.push(name);
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Whether a line begins with a directive of a feature that is not there, or mentions it in a list of features.
fn needs_more(text: &str) -> bool {
    let is_beyond = |word: &str| BEYOND.contains(&word);
    text.lines().any(|line| {
        let line = line.trim_start();
        let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let first = line.split(|c| !word(c)).next().unwrap_or_default();
        let is_directive = is_beyond(first) && (line.ends_with([';', '{']));
        is_directive || (line.contains("has(") && line.split(|c| !word(c)).any(is_beyond))
    })
}

fn ask(suite: &Path, file: &str, binary: &Path) -> Result<Found, Failure> {
    let binary = fs::canonicalize(binary).map_err(|e| format!("{}: {e}", binary.display()))?;
    let mut command = Command::new("perl");
    command.arg(file).current_dir(suite).env("TEST_NGINX_BINARY", binary);
    if rustix::process::geteuid().is_root() && env::var_os("TEST_NGINX_GLOBALS").is_none() {
        // The directories of the suite are open to their owner only.
        command.env("TEST_NGINX_GLOBALS", "user root;");
    }
    let output = command.output().map_err(|e| format!("perl: {e}"))?;
    Ok(judge(&String::from_utf8_lossy(&output.stdout), output.status.success()))
}

/// Reads what a file printed.
fn judge(text: &str, success: bool) -> Found {
    if let Some((_, why)) = text.lines().find_map(|line| line.strip_prefix("1..0")?.split_once("SKIP ")) {
        return Found::Skipped(why.to_owned());
    }
    let failed = text.lines().filter_map(|line| line.strip_prefix("not ok "));
    let failed: Vec<_> = failed.filter(|line| !line.contains(EXPECTED_TO_FAIL)).map(str::to_owned).collect();
    match (failed.is_empty(), success) {
        (true, true) => Found::Passed,
        (true, false) => Found::Failed(vec!["ended early".to_owned()]),
        (false, _) => Found::Failed(failed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_file_says() {
        for (text, success, found) in [
            ("1..2\nok 1 - a\nok 2 - b\n", true, Found::Passed),
            (concat!("1..1\nnot ok 1 - a # TO", "DO later\n"), true, Found::Passed),
            ("1..0 # SKIP no proxy available\n", true, Found::Skipped("no proxy available".to_owned())),
            ("1..2\nok 1 - a\nnot ok 2 - b\n", false, Found::Failed(vec!["2 - b".to_owned()])),
            ("1..2\nok 1 - a\n", false, Found::Failed(vec!["ended early".to_owned()])),
        ] {
            assert_eq!(judge(text, success), found, "{text}");
        }
    }

    #[test]
    fn which_files_count() {
        for (text, more) in [
            ("  js_content a;", true),
            ("  stream {", true),
            ("my $t = new()->has(qw/http proxy stream/);", true),
            ("  return 200 stream;", false),
            ("  gzip on;\n  root html;", false),
            ("# about the stream", false),
        ] {
            assert_eq!(needs_more(text), more, "{text}");
        }
    }
}
