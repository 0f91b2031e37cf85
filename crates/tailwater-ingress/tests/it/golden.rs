//! Configurations of some objects, compared with files and checked by the server. `UPDATE=1` writes the files.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use tailwater_ingress::cluster::store::{Kept, Snapshot};
use tailwater_ingress::site::settings::{FleetOptions, SiteOptions};
use tailwater_ingress::site::{build, certificate, selected};
use tw_testkit::TempDir;

use crate::cluster::server_binary;

fn insert<T: Kept>(snapshot: &mut Snapshot, json: &Value) {
    let object = T::read(json).unwrap();
    T::place(snapshot).insert(object.name().clone(), object.into());
}

fn read(text: &str) -> Snapshot {
    use tailwater_ingress::cluster::gateway::{
        Gateway, GatewayClass, GrpcRoute, HttpRoute, Namespace, ReferenceGrant, TcpRoute, TlsRoute, UdpRoute,
    };
    use tailwater_ingress::cluster::object::{
        ConfigMap, EndpointSlice, Ingress, IngressClass, Secret, Service,
    };
    let mut snapshot = Snapshot::default();
    let list: Value = serde_json::from_str(text).unwrap();
    for object in list.as_array().unwrap() {
        match object["kind"].as_str().unwrap() {
            "Ingress" => insert::<Ingress>(&mut snapshot, object),
            "IngressClass" => insert::<IngressClass>(&mut snapshot, object),
            "Service" => insert::<Service>(&mut snapshot, object),
            "EndpointSlice" => insert::<EndpointSlice>(&mut snapshot, object),
            "Secret" => insert::<Secret>(&mut snapshot, object),
            "ConfigMap" => insert::<ConfigMap>(&mut snapshot, object),
            "Namespace" => insert::<Namespace>(&mut snapshot, object),
            "GatewayClass" => insert::<GatewayClass>(&mut snapshot, object),
            "Gateway" => insert::<Gateway>(&mut snapshot, object),
            "HTTPRoute" => insert::<HttpRoute>(&mut snapshot, object),
            "GRPCRoute" => insert::<GrpcRoute>(&mut snapshot, object),
            "TCPRoute" => insert::<TcpRoute>(&mut snapshot, object),
            "UDPRoute" => insert::<UdpRoute>(&mut snapshot, object),
            "TLSRoute" => insert::<TlsRoute>(&mut snapshot, object),
            "ReferenceGrant" => insert::<ReferenceGrant>(&mut snapshot, object),
            kind => panic!("{kind}"),
        }
    }
    snapshot
}

#[test]
fn configurations_are_those_of_the_files() {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut count = 0;
    for entry in std::fs::read_dir(&dir).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|end| end != "json") {
            continue;
        }
        count += 1;
        let place = TempDir::new("golden").unwrap();
        let snapshot = read(&std::fs::read_to_string(&path).unwrap());
        let mut options = SiteOptions {
            dir: place.path().to_owned(),
            default_certificate: certificate::self_signed().unwrap(),
            resolvers: vec!["10.96.0.10".parse().unwrap()],
            config_map: Some(tailwater_ingress::cluster::object::ObjectName::new("system", "settings")),
            allow_snippets: true,
            ..SiteOptions::default()
        };
        if path.file_stem().is_some_and(|name| name == "fleet") {
            options.fleet = Some(FleetOptions {
                engine: "nats://nats.system.svc".to_owned(),
                credentials: None,
                node: "replica-1".to_owned(),
            });
        }
        if path.file_stem().is_some_and(|name| name == "firewall") {
            let rules = "SecRule ARGS \"@contains evil\" \"id:90,phase:1,deny\"\n";
            let file = place.write("crs.conf", rules).unwrap();
            options.firewall.core_rules = Some(file.display().to_string());
        }
        options.user = rustix::process::geteuid().is_root().then(|| "root".to_owned());
        let site = build(&snapshot, &selected(&snapshot, &options), &options);
        let mut text = site.text();
        for (file, content) in site.files.contents() {
            place.write(file.strip_prefix(place.path()).unwrap(), content).unwrap();
        }
        std::fs::create_dir(place.join("temp")).unwrap();
        let written_path = place.write("nginx.conf", &text).unwrap();
        if let Some(binary) = server_binary() {
            let output = Command::new(binary).arg("-t").arg("-c").arg(&written_path).output().unwrap();
            assert!(
                output.status.success(),
                "{}: {}\n{text}",
                path.display(),
                String::from_utf8_lossy(&output.stderr)
            );
        }
        // Texts that differ between runs are replaced.
        text = text
            .replace(&place.path().display().to_string(), "/run/tailwater-ingress")
            .replace("user root;\n", "");
        for file in site.files.contents().keys() {
            text = text.replace(file.file_stem().unwrap().to_str().unwrap(), "DIGEST");
        }
        text += "\n";
        for (name, problem) in &site.problems {
            text += &format!("# {name}: {problem}\n");
        }
        let golden = path.with_extension("conf");
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&golden, &text).unwrap();
        }
        assert_eq!(
            text,
            std::fs::read_to_string(&golden).unwrap_or_default(),
            "{}: UPDATE=1 writes it",
            golden.display()
        );
    }
    assert!(count >= 4);
}
