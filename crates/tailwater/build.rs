//! Tells the binary which compiler built it, for `-V`.

use std::env;
use std::process::Command;

fn main() {
    for input in ["TAILWATER_PREFIX", "TAILWATER_CONF"] {
        println!("cargo::rerun-if-env-changed={input}");
    }
    println!("cargo::rerun-if-changed=build.rs");
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = Command::new(rustc).arg("--version").output();
    let version = version.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    println!("cargo::rustc-env=TAILWATER_COMPILER={}", version.unwrap_or_else(|_| "rustc".to_owned()));
}
