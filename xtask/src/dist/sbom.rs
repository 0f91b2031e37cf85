//! Bill of materials of the binary in the format CycloneDX 1.5 (JSON), from the metadata of cargo and the lock file.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::compress::sha256;
use super::layout::read;
use super::utc;
use crate::Failure;
use crate::notices::{linked, list, metadata, word};

/// Makes the bill of the binary for a target.
pub(super) fn text(target: &str, version: &str, epoch: u64) -> Result<String, Failure> {
    of_metadata(&metadata(Some(target))?, &read("Cargo.lock")?, target, version, epoch)
}

fn of_metadata(
    metadata: &Value,
    lock: &str,
    target: &str,
    version: &str,
    epoch: u64,
) -> Result<String, Failure> {
    let linked = linked(metadata)?;
    let checksums = checksums(lock);
    let packages: BTreeMap<_, _> =
        list(metadata, "packages").into_iter().map(|package| (word(&package, "id"), package)).collect();
    let reference = |id: &str| packages.get(id).map(reference).unwrap_or_default();
    let mut components = BTreeMap::new();
    let mut dependencies = BTreeMap::new();
    let mut program = String::new();
    for (id, below) in &linked {
        let Some(package) = packages.get(id) else { continue };
        let own = reference(id);
        let below: Vec<_> = below.iter().map(|id| reference(id)).collect();
        dependencies.insert(own.clone(), below);
        if package["name"] == "tailwater" {
            program = own;
        } else {
            components.insert(own, component(package, &checksums));
        }
    }
    let license = json!([{ "expression": "MIT OR Apache-2.0" }]);
    let mut bill = json!({
        "$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": utc(epoch),
            "component": {
                "type": "application",
                "bom-ref": program,
                "name": "tailwater",
                "version": version,
                "purl": program,
                "licenses": license,
                "properties": [{ "name": "cargo:target", "value": target }],
            },
        },
        "components": components.into_values().collect::<Vec<_>>(),
        "dependencies": dependencies
            .into_iter()
            .map(|(own, below)| json!({ "ref": own, "dependsOn": below }))
            .collect::<Vec<_>>(),
    });
    bill["serialNumber"] = serial(&bill.to_string()).into();
    let text = serde_json::to_string_pretty(&bill).map_err(|error| error.to_string())?;
    Ok(text + "\n")
}

/// Package URL, which is also the reference to the component.
fn reference(package: &Value) -> String {
    format!("pkg:cargo/{}@{}", word(package, "name"), word(package, "version"))
}

/// Programs beside the server.
const APPLICATIONS: [&str; 4] = ["tailwater-scripts", "tailwater-top", "tailwater-ingress", "tw-slowdisk"];

fn component(package: &Value, checksums: &BTreeMap<(String, String), String>) -> Value {
    let name = word(package, "name");
    let version = word(package, "version");
    let mut component = json!({
        "type": if APPLICATIONS.contains(&name.as_str()) { "application" } else { "library" },
        "bom-ref": reference(package),
        "name": name,
        "version": version,
        "purl": reference(package),
    });
    if let Some(license) = package["license"].as_str() {
        // The slash is an old notation for OR.
        component["licenses"] = json!([{ "expression": license.replace('/', " OR ") }]);
    }
    if let Some(url) = package["repository"].as_str().filter(|url| !url.is_empty()) {
        component["externalReferences"] = json!([{ "type": "vcs", "url": url }]);
    }
    if let Some(checksum) = checksums.get(&(name, version)) {
        component["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
    }
    component
}

/// Checksums of the lock file by name and version.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let mut all = BTreeMap::new();
    for package in lock.split("[[package]]").skip(1) {
        let value = |key: &str| {
            let start = format!("{key} = \"");
            let line = package.lines().find_map(|line| line.strip_prefix(&start))?;
            line.strip_suffix('"').map(str::to_owned)
        };
        if let (Some(name), Some(version), Some(checksum)) =
            (value("name"), value("version"), value("checksum"))
        {
            all.insert((name, version), checksum);
        }
    }
    all
}

/// Number of the bill in the form of a UUID (version 8), made of its text.
fn serial(text: &str) -> String {
    let hash = sha256(text.as_bytes());
    format!(
        "urn:uuid:{}-{}-8{}-8{}-{}",
        &hash[..8],
        &hash[8..12],
        &hash[13..16],
        &hash[17..20],
        &hash[20..32]
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_have_checksum_licence_and_address() {
        let lock = "[[package]]\nname = \"a\"\nversion = \"1.0.0\"\nsource = \"r\"\nchecksum = \"abc\"\n\n[[package]]\nname = \"b\"\n";
        let package = json!({ "name": "a", "version": "1.0.0", "license": "MIT/Apache-2.0", "repository": "https://a" });
        let component = component(&package, &checksums(lock));
        assert_eq!(component["purl"], "pkg:cargo/a@1.0.0");
        assert_eq!(component["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(component["hashes"][0]["content"], "abc");
        assert_eq!(component["externalReferences"][0]["url"], "https://a");
    }

    #[test]
    fn bill_lists_every_dependency_of_the_program() {
        let text = text("x86_64-unknown-linux-gnu", "0.1.0", 0).unwrap();
        let bill: Value = serde_json::from_str(&text).unwrap();
        let components = bill["components"].as_array().unwrap();
        assert!(components.iter().any(|component| component["name"] == "rustls"));
        assert!(components.iter().any(|component| component["name"] == "fuser"));
        assert!(components.iter().all(|component| component["name"] != "tokio-rustls"), "development only");
        // A crate of the workspace has no checksum, every other one has.
        for component in components {
            let name = component["name"].as_str().unwrap();
            let is_ours = name.starts_with("tw-") || name.starts_with("tailwater-");
            assert_eq!(component["hashes"].is_null(), is_ours, "{component}");
        }
        assert!(!text.contains(&crate::root().display().to_string()), "names this machine");
        let mut references: Vec<_> =
            components.iter().map(|component| component["bom-ref"].clone()).collect();
        references.push(bill["metadata"]["component"]["bom-ref"].clone());
        for entry in bill["dependencies"].as_array().unwrap() {
            for below in entry["dependsOn"].as_array().unwrap() {
                assert!(references.contains(below), "{below}");
            }
        }
    }
}
