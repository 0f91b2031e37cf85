//! Container images with one layer and no base, as a file that `podman load`, `docker load` and `skopeo` read: the
//! layout of OCI, and the manifest of `docker save` for older versions of Docker.

use serde_json::{Value, json};

use super::compress::{Effort, sha256};
use super::files::{Content, Files, Owner, Role};
use super::layout::{CONFIGURATION, INCLUDED, Parts, read};
use super::{Product, tar, utc};
use crate::Failure;

/// User of the image: no known one, in the group of root, as runtimes choose it that assign users themselves.
const USER: Owner = Owner { user: 65532, group: 0 };
/// Directory of the pid file and of temporary files, the only one that is written to.
pub(super) const PREFIX: &str = "/run/tailwater/";
/// Path of the binary in the image.
pub(super) const PROGRAM: &str = "/usr/sbin/tailwater";
/// Path of `tailwater-top`. There is no shell in the image, and status pages often listen on 127.0.0.1 only, so it is run in the container.
/// `tailwater-slowdisk` is left out: a container may not mount anything.
const TOP: &str = "/usr/bin/tailwater-top";
/// Port of the configuration of the image.
pub(super) const PORT: u16 = 8080;

/// Name of an architecture in OCI; the target has to be one whose binary is static.
pub(super) fn architecture(target: &str) -> Option<&'static str> {
    match target {
        "x86_64-unknown-linux-musl" => Some("amd64"),
        "aarch64-unknown-linux-musl" => Some("arm64"),
        _ => None,
    }
}

/// Makes the image.
pub(super) fn image(product: &Product, architecture: &str, effort: Effort) -> Result<Vec<u8>, Failure> {
    let layer = tar::write(&layer(&product.parts)?, ".", product.epoch)?;
    let packed = effort.gzip(&layer)?;
    let (created, reference) = (utc(product.epoch), format!("tailwater:{}", product.version));
    let config = json!({
        "created": created,
        "architecture": architecture,
        "os": "linux",
        "config": {
            "User": format!("{}:{}", USER.user, USER.group),
            "ExposedPorts": { format!("{PORT}/tcp"): {} },
            "Env": ["PATH=/usr/sbin:/usr/bin"],
            "Entrypoint": [PROGRAM, "-p", PREFIX],
            "WorkingDir": "/",
            // Requests are finished; a second signal, or SIGTERM, ends the server at once.
            "StopSignal": "SIGQUIT",
            // The format of OCI has none, but Docker reads this one. Times are in nanoseconds.
            "Healthcheck": {
                "Test": ["CMD", PROGRAM, "-p", PREFIX, "-s", "reopen"],
                "Interval": 30_000_000_000_u64,
                "Timeout": 5_000_000_000_u64,
                "Retries": 3,
            },
            "Labels": {
                "org.opencontainers.image.title": "tailwater",
                "org.opencontainers.image.version": product.version,
                "org.opencontainers.image.licenses": "MIT OR Apache-2.0",
                "org.opencontainers.image.source": "https://github.com/tailwater/tailwater",
            },
        },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{}", sha256(&layer))] },
        "history": [{ "created": created, "created_by": "cargo xtask dist" }],
    })
    .to_string()
    .into_bytes();
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": descriptor("application/vnd.oci.image.config.v1+json", &config),
        "layers": [descriptor("application/vnd.oci.image.layer.v1.tar+gzip", &packed)],
    })
    .to_string()
    .into_bytes();
    let mut entry = descriptor("application/vnd.oci.image.manifest.v1+json", &manifest);
    entry["platform"] = json!({ "architecture": architecture, "os": "linux" });
    entry["annotations"] = json!({
        "org.opencontainers.image.ref.name": product.version,
        "io.containerd.image.name": format!("docker.io/library/{reference}"),
    });
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [entry],
    });
    let saved = json!([{ "Config": blob(&config), "RepoTags": [reference], "Layers": [blob(&packed)] }]);
    let mut files = Files::default();
    files.add_file("oci-layout", 0o644, json!({ "imageLayoutVersion": "1.0.0" }).to_string());
    files.add_file("index.json", 0o644, index.to_string());
    files.add_file("manifest.json", 0o644, saved.to_string());
    for bytes in [config, manifest, packed] {
        files.add_file(&blob(&bytes), 0o644, bytes);
    }
    // Docker looks for names without a directory in front of them.
    tar::write_plain(&files, product.epoch)
}

/// Path of a blob.
fn blob(bytes: &[u8]) -> String {
    format!("blobs/sha256/{}", sha256(bytes))
}

fn descriptor(kind: &str, bytes: &[u8]) -> Value {
    json!({ "mediaType": kind, "digest": format!("sha256:{}", sha256(bytes)), "size": bytes.len() })
}

/// Root file system of the image.
fn layer(parts: &Parts) -> Result<Files, Failure> {
    let mut files = Files::default();
    let program = parts.program.clone().unwrap_or_default();
    files.add_file(PROGRAM.trim_start_matches('/'), 0o755, program);
    if let Some(top) = &parts.tools.top {
        files.add_file(TOP.trim_start_matches('/'), 0o755, top.clone());
    }
    let configuration = CONFIGURATION.trim_start_matches('/');
    files.add_file(configuration, 0o644, read("packaging/container/nginx.conf")?);
    for name in INCLUDED {
        let text = read(&format!("crates/tailwater/conf/{name}"))?;
        files.add_file(&format!("etc/tailwater/{name}"), 0o644, text);
    }
    // Names for tools that look; the server reads neither.
    files.add_file("etc/passwd", 0o644, format!("root:x:0:0::/:\ntailwater:x:{}:0::/:\n", USER.user));
    files.add_file("etc/group", 0o644, "root:x:0:\n");
    files.add_file("srv/www/index.html", 0o644, read("packaging/html/index.html")?);
    for (name, text) in [
        ("LICENSE-MIT", read("LICENSE-MIT")?),
        ("LICENSE-APACHE", read("LICENSE-APACHE")?),
        ("THIRD-PARTY", parts.notices.clone()),
        ("sbom.cdx.json", parts.sbom.clone()),
    ] {
        files.add_file(&format!("usr/share/doc/tailwater/{name}"), 0o644, text);
    }
    files.add_directory("etc/tailwater/conf.d", 0o755);
    // Every user in group 0 may write there.
    let run = PREFIX.trim_matches('/');
    files.add(run, 0o775, Role::Program, Content::Directory);
    files.set_owner(run, USER);
    files.add("tmp", 0o1777, Role::Program, Content::Directory);
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dist::layout::Tools;

    #[test]
    fn top_is_in_the_image_and_slowdisk_is_not() {
        let tools = Tools { top: Some(b"top".to_vec()), slowdisk: Some(b"slowdisk".to_vec()) };
        let files = layer(&Parts { tools, ..Parts::default() }).unwrap();
        assert_eq!(files.file("usr/bin/tailwater-top"), Some(&b"top"[..]));
        assert!(files.iter().all(|(path, _)| !path.contains("slowdisk")));
    }

    #[test]
    fn everything_that_is_written_to_belongs_to_the_user() {
        let files = layer(&Parts::default()).unwrap();
        let owners: Vec<_> = files.iter().filter(|(_, entry)| entry.owner == USER).collect();
        assert_eq!(owners.iter().map(|(path, _)| *path).collect::<Vec<_>>(), ["run/tailwater"]);
        let conf = String::from_utf8(files.file("etc/tailwater/nginx.conf").unwrap().to_vec()).unwrap();
        assert!(conf.contains(&format!("listen {PORT} ")) && conf.contains("pid /run/tailwater/"));
    }
}
