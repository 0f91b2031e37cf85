//! Manifests: they are YAML, they name what exists, and the rights are those that the program uses.

use std::collections::BTreeSet;
use std::path::PathBuf;

use tailwater_ingress::cluster::watch::RESOURCES;
use tailwater_ingress::options::OPTIONS;

fn packaging(path: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A line of YAML in block style: its depth, whether it begins an item, its key, and its value.
#[derive(Debug)]
struct Line {
    depth: usize,
    key: String,
    value: String,
}

/// Reads the subset of YAML that the manifests are written in, and refuses everything else.
fn lines(text: &str) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for (number, raw) in text.lines().enumerate() {
        let line = raw.split(" #").next().unwrap();
        if line.trim().is_empty() || line.starts_with('#') || line == "---" {
            continue;
        }
        assert!(!line.contains('\t'), "line {number}: a tab");
        let mut rest = line.trim_start();
        let mut depth = line.len() - rest.len();
        assert_eq!(depth % 2, 0, "line {number}: {raw}");
        while let Some(item) = rest.strip_prefix("- ") {
            rest = item;
            depth += 2;
        }
        let (key, value) = match rest.split_once(": ") {
            Some((key, value)) => (key, value.trim()),
            None => rest.strip_suffix(':').map_or(("", rest), |key| (key, "")),
        };
        assert!(!key.contains(['"', '{', '[']) || key.starts_with('"'), "line {number}: {raw}");
        for (open, close) in [('[', ']'), ('{', '}')] {
            assert_eq!(value.matches(open).count(), value.matches(close).count(), "line {number}: {raw}");
        }
        assert_eq!(value.matches('"').count() % 2, 0, "line {number}: {raw}");
        if let Some(before) = lines.last() {
            assert!(depth <= before.depth + 2 || before.value.is_empty(), "line {number}: {raw}");
        }
        lines.push(Line { depth, key: key.to_owned(), value: value.to_owned() });
    }
    lines
}

/// Templates of the chart as their default values make them, as far as rights and arguments are concerned, and these values.
fn chart() -> String {
    let text = chart_file("templates/rbac.yaml") + &chart_file("templates/deployment.yaml");
    let kept = text.lines().filter(|line| !line.trim_start().starts_with("{{-"));
    let kept: String = kept.map(|line| format!("{line}\n")).collect();
    kept.replace("{{", "").replace("}}", "") + &chart_file("values.yaml")
}

fn chart_file(path: &str) -> String {
    packaging(&format!("helm/tailwater-ingress/{path}"))
}

/// Paths of keys of YAML, as `a` and `a.b`, to this depth.
fn keys(text: &str, levels: usize) -> BTreeSet<String> {
    let mut path: Vec<String> = Vec::new();
    let mut keys = BTreeSet::new();
    for line in lines(text).into_iter().filter(|line| !line.key.is_empty()) {
        path.truncate(line.depth / 2);
        path.push(line.key);
        if path.len() <= levels {
            keys.insert(path.join("."));
        }
    }
    keys
}

/// Paths of values that the templates of the chart use.
fn used_values() -> BTreeSet<String> {
    let directory =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../packaging/helm/tailwater-ingress/templates");
    let mut used = BTreeSet::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        for rest in text.split(".Values.").skip(1) {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '.').unwrap_or(rest.len());
            used.insert(rest[..end].to_owned());
        }
    }
    used
}

/// Pairs of `group/resource` and verb.
fn rights(text: &str) -> BTreeSet<(String, String)> {
    let words = |value: &str| -> Vec<String> {
        let inner = value.trim_start_matches('[').trim_end_matches(']');
        inner.split(',').map(|word| word.trim().trim_matches('"').to_owned()).collect()
    };
    let mut groups = Vec::new();
    let mut resources = Vec::new();
    let mut rights = BTreeSet::new();
    for line in lines(text) {
        match &*line.key {
            "apiGroups" => groups = words(&line.value),
            "resources" => resources = words(&line.value),
            "verbs" => {
                for group in &groups {
                    for resource in &resources {
                        rights.extend(
                            words(&line.value).into_iter().map(|verb| (format!("{group}/{resource}"), verb)),
                        );
                    }
                }
            }
            _ => {}
        }
    }
    rights
}

#[test]
fn rights_are_those_that_the_program_uses() {
    let mut used = BTreeSet::new();
    for resource in RESOURCES {
        for verb in ["list", "watch"] {
            used.insert((format!("{}/{}", resource.group, resource.plural), verb.to_owned()));
        }
    }
    for (resource, verb) in [
        ("/services", "get"),
        ("/events", "create"),
        ("networking.k8s.io/ingresses/status", "patch"),
        ("gateway.networking.k8s.io/gatewayclasses/status", "patch"),
        ("gateway.networking.k8s.io/gateways/status", "patch"),
        ("gateway.networking.k8s.io/httproutes/status", "patch"),
        ("gateway.networking.k8s.io/grpcroutes/status", "patch"),
        ("gateway.networking.k8s.io/tlsroutes/status", "patch"),
        ("gateway.networking.k8s.io/tcproutes/status", "patch"),
        ("gateway.networking.k8s.io/udproutes/status", "patch"),
        ("coordination.k8s.io/leases", "create"),
        ("coordination.k8s.io/leases", "get"),
        ("coordination.k8s.io/leases", "update"),
    ] {
        used.insert((resource.to_owned(), verb.to_owned()));
    }
    assert_eq!(rights(&packaging("kubernetes/ingress.yaml")), used);
    assert_eq!(rights(&chart()), used);
}

#[test]
fn manifests_run_without_privileges() {
    for text in [packaging("kubernetes/ingress.yaml"), chart()] {
        let lines = lines(&text);
        let has = |key: &str, value: &str| lines.iter().any(|line| line.key == key && line.value == value);
        for (key, value) in [
            ("runAsNonRoot", "true"),
            ("readOnlyRootFilesystem", "true"),
            ("allowPrivilegeEscalation", "false"),
            ("drop", "[\"ALL\"]"),
        ] {
            assert!(has(key, value), "{key}: {value}");
        }
        for argument in lines.iter().filter(|line| line.key.is_empty() && line.value.starts_with("--")) {
            let name = argument.value.split('=').next().unwrap();
            assert!(OPTIONS.iter().any(|option| option.names.contains(&name)), "{name}");
        }
    }
    assert!(chart_file("Chart.yaml").contains("name: tailwater-ingress\n"));
    assert!(!lines(&chart_file("Chart.yaml")).is_empty());
}

#[test]
fn values_of_the_chart_are_used_and_described() {
    let values = keys(&chart_file("values.yaml"), 3);
    let used = used_values();
    for name in &used {
        assert!(values.contains(name), "values.yaml lacks {name}");
    }
    let top = keys(&chart_file("values.yaml"), 1);
    for name in &top {
        let below = format!("{name}.");
        assert!(used.iter().any(|used| used == name || used.starts_with(&below)), "no template uses {name}");
    }
    let schema: serde_json::Value = serde_json::from_str(&chart_file("values.schema.json")).unwrap();
    assert_eq!(schema["additionalProperties"], false);
    let described = schema["properties"].as_object().unwrap().keys().cloned();
    // Helm adds this one.
    assert_eq!(described.filter(|name| name != "global").collect::<BTreeSet<_>>(), top);
    for name in used.iter().filter(|name| name.contains('.')) {
        let place = format!("/properties/{}", name.replace('.', "/properties/"));
        assert!(schema.pointer(&place).is_some(), "values.schema.json lacks {name}");
    }
    for name in keys(&packaging("helm/everything.yaml"), 1) {
        assert!(top.contains(&name), "everything.yaml sets {name}, which is no value");
    }
}

#[test]
fn versions_of_the_chart_are_ours() {
    for key in ["version", "appVersion"] {
        let line = format!("\n{key}: {}\n", env!("CARGO_PKG_VERSION"));
        assert!(chart_file("Chart.yaml").contains(&line), "{key}");
    }
}
