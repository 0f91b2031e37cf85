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
/// Path of the ingress controller in its image.
pub(super) const INGRESS_PROGRAM: &str = "/usr/bin/tailwater-ingress";
/// Directory of its configuration, the only one that is written to.
const INGRESS_DIRECTORY: &str = "/run/tailwater-ingress/";
/// Ports of the controller for HTTP and HTTPS.
const INGRESS_PORTS: &[u16] = &[8080, 8443];

/// Name of an architecture in OCI; the target has to be one whose binary is static.
pub(super) fn architecture(target: &str) -> Option<&'static str> {
    match target {
        "x86_64-unknown-linux-musl" => Some("amd64"),
        "aarch64-unknown-linux-musl" => Some("arm64"),
        _ => None,
    }
}

/// An image: its file system, and how its program is run.
#[derive(Debug)]
pub(super) struct Image {
    name: &'static str,
    entrypoint: Vec<&'static str>,
    ports: &'static [u16],
    stop_signal: &'static str,
    healthcheck: Value,
    layer: Files,
}

/// Image of the server.
pub(super) fn server(parts: &Parts) -> Result<Image, Failure> {
    Ok(Image {
        name: "tailwater",
        entrypoint: vec![PROGRAM, "-p", PREFIX],
        ports: &[PORT],
        // Requests are finished; a second signal, or SIGTERM, ends the server at once.
        stop_signal: "SIGQUIT",
        // The format of OCI has none, but Docker reads this one. Times are in nanoseconds.
        healthcheck: json!({
            "Test": ["CMD", PROGRAM, "-p", PREFIX, "-s", "reopen"],
            "Interval": 30_000_000_000_u64,
            "Timeout": 5_000_000_000_u64,
            "Retries": 3,
        }),
        layer: layer(parts)?,
    })
}

/// Image of the ingress controller with the server that it starts; `None` without its program.
pub(super) fn ingress(parts: &Parts) -> Result<Option<Image>, Failure> {
    let Some(controller) = &parts.tools.ingress else { return Ok(None) };
    let mut layer = Files::default();
    layer.add_file(INGRESS_PROGRAM.trim_start_matches('/'), 0o755, controller.clone());
    // The controller finds its server beside itself.
    layer.add_file("usr/bin/tailwater", 0o755, parts.program.clone().unwrap_or_default());
    common(&mut layer, parts, INGRESS_DIRECTORY)?;
    Ok(Some(Image {
        name: "tailwater-ingress",
        entrypoint: vec![INGRESS_PROGRAM],
        ports: INGRESS_PORTS,
        // Requests are finished; a second signal ends them.
        stop_signal: "SIGTERM",
        // Kubernetes asks over HTTP.
        healthcheck: Value::Null,
        layer,
    }))
}

impl Image {
    /// Makes the file.
    pub(super) fn write(
        &self,
        product: &Product,
        architecture: &str,
        effort: Effort,
    ) -> Result<Vec<u8>, Failure> {
        let layer = tar::write(&self.layer, ".", product.epoch)?;
        let packed = effort.gzip(&layer)?;
        let created = utc(product.epoch);
        let reference = format!("{}:{}", self.name, product.version);
        let ports: serde_json::Map<_, _> =
            self.ports.iter().map(|port| (format!("{port}/tcp"), json!({}))).collect();
        let mut config = json!({
            "created": created,
            "architecture": architecture,
            "os": "linux",
            "config": {
                "User": format!("{}:{}", USER.user, USER.group),
                "ExposedPorts": ports,
                "Env": ["PATH=/usr/sbin:/usr/bin"],
                "Entrypoint": self.entrypoint,
                "WorkingDir": "/",
                "StopSignal": self.stop_signal,
                "Labels": {
                    "org.opencontainers.image.title": self.name,
                    "org.opencontainers.image.version": product.version,
                    "org.opencontainers.image.licenses": "MIT OR Apache-2.0",
                    "org.opencontainers.image.source": "https://github.com/tailwater/tailwater",
                },
            },
            "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{}", sha256(&layer))] },
            "history": [{ "created": created, "created_by": "cargo xtask dist" }],
        });
        if !self.healthcheck.is_null() {
            config["config"]["Healthcheck"] = self.healthcheck.clone();
        }
        let config = config.to_string().into_bytes();
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
    if let Some(scripts) = &parts.tools.scripts {
        let path = format!("{}-scripts", PROGRAM.trim_start_matches('/'));
        files.add_file(&path, 0o755, scripts.clone());
    }
    if let Some(top) = &parts.tools.top {
        files.add_file(TOP.trim_start_matches('/'), 0o755, top.clone());
    }
    let configuration = CONFIGURATION.trim_start_matches('/');
    files.add_file(configuration, 0o644, read("packaging/container/nginx.conf")?);
    for name in INCLUDED {
        let text = read(&format!("crates/tailwater/conf/{name}"))?;
        files.add_file(&format!("etc/tailwater/{name}"), 0o644, text);
    }
    files.add_file("srv/www/index.html", 0o644, read("packaging/html/index.html")?);
    files.add_directory("etc/tailwater/conf.d", 0o755);
    common(&mut files, parts, PREFIX)?;
    Ok(files)
}

/// Files of every image. `run` is the directory that is written to.
fn common(files: &mut Files, parts: &Parts, run: &str) -> Result<(), Failure> {
    // Names for tools that look; the server reads neither.
    files.add_file("etc/passwd", 0o644, format!("root:x:0:0::/:\ntailwater:x:{}:0::/:\n", USER.user));
    files.add_file("etc/group", 0o644, "root:x:0:\n");
    for (name, text) in [
        ("LICENSE-MIT", read("LICENSE-MIT")?),
        ("LICENSE-APACHE", read("LICENSE-APACHE")?),
        ("THIRD-PARTY", parts.notices.clone()),
        ("sbom.cdx.json", parts.sbom.clone()),
    ] {
        files.add_file(&format!("usr/share/doc/tailwater/{name}"), 0o644, text);
    }
    // Every user in group 0 may write there.
    let run = run.trim_matches('/');
    files.add(run, 0o775, Role::Program, Content::Directory);
    files.set_owner(run, USER);
    files.add("tmp", 0o1777, Role::Program, Content::Directory);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dist::layout::Tools;

    #[test]
    fn top_is_in_the_image_and_slowdisk_is_not() {
        let tools =
            Tools { top: Some(b"top".to_vec()), slowdisk: Some(b"slowdisk".to_vec()), ..Tools::default() };
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
    #[test]
    fn ingress_image_has_the_controller_and_its_server() {
        assert!(ingress(&Parts::default()).unwrap().is_none());
        let tools = Tools { ingress: Some(b"ingress".to_vec()), ..Tools::default() };
        let image = ingress(&Parts { tools, program: Some(b"server".to_vec()), ..Parts::default() });
        let files = image.unwrap().unwrap().layer;
        assert_eq!(files.file("usr/bin/tailwater-ingress"), Some(&b"ingress"[..]));
        assert_eq!(files.file("usr/bin/tailwater"), Some(&b"server"[..]));
        let written_values: Vec<_> = files.iter().filter(|(_, entry)| entry.owner == USER).collect();
        assert_eq!(
            written_values.iter().map(|(path, _)| *path).collect::<Vec<_>>(),
            ["run/tailwater-ingress"]
        );
    }
}
