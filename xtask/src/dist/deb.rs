//! Debian packages: an `ar` archive of a format version, control files and files (deb(5)).

use std::fmt::Write;

use super::compress::{Effort, hex, md5};
use super::elf::Needs;
use super::files::{Content, Files, Role};
use super::layout::{Layout, read};
use super::{Product, tar};
use crate::Failure;

/// Revision of the package of one version.
pub(super) const REVISION: &str = "1";

/// Scripts that dpkg runs.
const SCRIPTS: &[&str] = &["postinst", "prerm", "postrm"];

/// Name of an architecture in Debian; the target has to be one that uses glibc.
pub(super) fn architecture(target: &str) -> Option<&'static str> {
    match target {
        "x86_64-unknown-linux-gnu" => Some("amd64"),
        "aarch64-unknown-linux-gnu" => Some("arm64"),
        _ => None,
    }
}

/// Makes the package.
pub(super) fn package(product: &Product, architecture: &str, effort: Effort) -> Result<Vec<u8>, Failure> {
    let files = Layout::Deb.files(&product.parts)?;
    let control = control(product, architecture, &files)?;
    let mut out = b"!<arch>\n".to_vec();
    for (name, content) in [
        ("debian-binary", b"2.0\n".to_vec()),
        // gzip, which every version of dpkg reads; Debian 11 has no zstd.
        ("control.tar.gz", effort.gzip(&tar::write(&control, ".", product.epoch)?)?),
        ("data.tar.gz", effort.gzip(&tar::write(&files, ".", product.epoch)?)?),
    ] {
        let epoch = product.epoch;
        let size = content.len();
        out.extend_from_slice(format!("{name:<16}{epoch:<12}0     0     100644  {size:<10}`\n").as_bytes());
        out.extend_from_slice(&content);
        if size % 2 == 1 {
            out.push(b'\n');
        }
    }
    Ok(out)
}

fn control(product: &Product, architecture: &str, files: &Files) -> Result<Files, Failure> {
    let text = read("packaging/deb/control")?
        .replace("@VERSION@", &format!("{}-{REVISION}", product.version))
        .replace("@ARCHITECTURE@", architecture)
        .replace("@MAINTAINER@", &product.maintainer)
        .replace("@SIZE@", &files.size().div_ceil(1024).to_string())
        .replace("@DEPENDS@", &depends(&product.needs)?);
    let mut sums = String::new();
    let mut configuration = String::new();
    for (path, entry) in files.iter() {
        let Content::File(bytes) = &entry.content else { continue };
        let _ = writeln!(sums, "{}  {path}", hex(&md5(bytes)));
        if entry.role == Role::Configuration {
            let _ = writeln!(configuration, "/{path}");
        }
    }
    let mut control = Files::default();
    control.add_file("control", 0o644, text);
    control.add_file("conffiles", 0o644, configuration);
    control.add_file("md5sums", 0o644, sums);
    for script in SCRIPTS {
        control.add_file(script, 0o755, read(&format!("packaging/deb/{script}"))?);
    }
    Ok(control)
}

/// Packages with the libraries that the binary needs, and `adduser` for the script.
fn depends(needs: &Needs) -> Result<String, Failure> {
    let mut packages = vec!["adduser".to_owned()];
    if let Some((major, minor)) = needs.glibc() {
        packages.push(format!("libc6 (>= {major}.{minor})"));
    }
    for library in needs.0.keys() {
        match library.split(".so").next().unwrap_or_default() {
            // These libraries are part of glibc.
            "libc" | "libm" | "libdl" | "libpthread" | "librt" => {}
            name if name.starts_with("ld-linux") => {}
            "libgcc_s" => packages.push("libgcc-s1".to_owned()),
            _ => return Err(format!("{library}: no known package of Debian has it")),
        }
    }
    Ok(packages.join(", "))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn libraries_become_packages() {
        let needs = |libraries: &[&str]| {
            let versions = |library: &str| match library {
                "libc.so.6" => ["GLIBC_2.34".to_owned()].into(),
                _ => [].into(),
            };
            let libraries = libraries.iter().map(|library| ((*library).to_owned(), versions(library)));
            Needs(libraries.collect::<BTreeMap<_, _>>())
        };
        let glibc = needs(&["libc.so.6", "libgcc_s.so.1", "libm.so.6", "ld-linux-x86-64.so.2"]);
        assert_eq!(depends(&glibc).unwrap(), "adduser, libc6 (>= 2.34), libgcc-s1");
        assert!(depends(&needs(&["libssl.so.3"])).is_err());
    }
}
