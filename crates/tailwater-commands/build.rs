//! Tells the binary what it was built from and with, for `-V`.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

fn main() {
    for input in ["TAILWATER_PREFIX", "TAILWATER_CONF"] {
        println!("cargo::rerun-if-env-changed={input}");
    }
    println!("cargo::rerun-if-env-changed=TAILWATER_COMMIT");
    println!("cargo::rerun-if-changed=build.rs");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    println!("cargo::rustc-env=TAILWATER_COMMIT={}", commit(&root).unwrap_or_default());
    println!("cargo::rustc-env=TAILWATER_TLS_LIBRARY={}", tls_library(&root.join("Cargo.lock")));
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = Command::new(rustc).arg("--version").output();
    let version = version.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    println!("cargo::rustc-env=TAILWATER_COMPILER={}", version.unwrap_or_else(|_| "rustc".to_owned()));
}

/// The commit of the checkout that this package is a part of. Packages that are built elsewhere set `TAILWATER_COMMIT`.
fn commit(root: &Path) -> Option<String> {
    if let Ok(given) = env::var("TAILWATER_COMMIT") {
        return Some(given.trim().to_owned());
    }
    let git = |words: &[&str]| {
        let output = Command::new("git").arg("-C").arg(root).args(words).output().ok()?;
        let text = String::from_utf8(output.stdout).ok().filter(|_| output.status.success())?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    };
    // A copy inside the repository of something else has not that one's commit.
    let top = fs::canonicalize(git(&["rev-parse", "--show-toplevel"])?).ok()?;
    if top != fs::canonicalize(root).ok()? {
        return None;
    }
    // Its log has a new line for every commit and every checkout.
    let log = root.join(git(&["rev-parse", "--git-path", "logs/HEAD"])?);
    if log.exists() {
        println!("cargo::rerun-if-changed={}", log.display());
    }
    git(&["rev-parse", "--short=12", "HEAD"])
}

/// The libraries of TLS with the versions of the lock file, as far as it is there.
fn tls_library(lock: &Path) -> String {
    println!("cargo::rerun-if-changed={}", lock.display());
    let text = fs::read_to_string(lock).unwrap_or_default();
    let version = |name: &str| {
        let (_, rest) = text.split_once(&format!("name = \"{name}\"\nversion = \""))?;
        rest.split_once('"').map(|(version, _)| format!(" {version}"))
    };
    let named = |name: &str| format!("{name}{}", version(name).unwrap_or_default());
    format!("{} with {}", named("rustls"), named("aws-lc-rs"))
}
