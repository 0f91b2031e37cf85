//! `zig cc` as compiler and linker: it knows the symbols of every version of glibc, so that a binary that is built on a
//! new system also runs on an old one.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Failure;

/// Commands that run zig: an installed one, or the one of the Python package `ziglang`.
const COMMANDS: &[&[&str]] = &[&["zig"], &["python3", "-m", "ziglang"]];

/// Writes a script that compiles and links for a target with at most this version of glibc.
pub(super) fn compiler(directory: &Path, triple: &str, glibc: &str) -> Result<PathBuf, Failure> {
    let zig = find().ok_or("--glibc: no zig: pip install ziglang")?;
    let target = target(triple, glibc).ok_or_else(|| format!("--glibc: {triple} has no glibc"))?;
    let path = directory.join(format!("zig-{target}"));
    fs::create_dir_all(directory)
        .and_then(|()| fs::write(&path, script(zig, &target)))
        .and_then(|()| fs::set_permissions(&path, Permissions::from_mode(0o755)))
        .map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path)
}

fn find() -> Option<&'static [&'static str]> {
    COMMANDS.iter().copied().find(|words| {
        let (program, arguments) = words.split_first().expect("each command has a program");
        let output = Command::new(program).args(arguments).arg("version").output();
        output.is_ok_and(|output| output.status.success())
    })
}

/// Name of the target in zig.
fn target(triple: &str, glibc: &str) -> Option<String> {
    let machine = triple.strip_suffix("-unknown-linux-gnu")?;
    Some(format!("{machine}-linux-gnu.{glibc}"))
}

/// The script leaves out the target that build scripts add, which zig writes in another way.
fn script(zig: &[&str], target: &str) -> String {
    let zig = zig.join(" ");
    format!(
        "#!/bin/bash
words=()
for word; do
    [[ $word == --target=* ]] || words+=(\"$word\")
done
exec {zig} cc -target {target} -fno-sanitize=all \"${{words[@]}}\"
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_have_the_version_of_glibc() {
        for (triple, expected) in [
            ("x86_64-unknown-linux-gnu", Some("x86_64-linux-gnu.2.31")),
            ("aarch64-unknown-linux-gnu", Some("aarch64-linux-gnu.2.31")),
            ("x86_64-unknown-linux-musl", None),
        ] {
            assert_eq!(target(triple, "2.31").as_deref(), expected, "{triple}");
        }
        let script = script(&["zig"], "x86_64-linux-gnu.2.31");
        assert!(script.contains("exec zig cc -target x86_64-linux-gnu.2.31 "), "{script}");
    }
}
