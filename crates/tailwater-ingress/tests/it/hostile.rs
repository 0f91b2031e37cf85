//! Objects of somebody who may write Ingress objects and nothing else.

use serde_json::json;
use tw_testkit::wait;

use crate::cluster::{Cluster, INGRESSES, Pod, SECRETS, ingress};

#[test]
fn odd_objects_never_break_the_others() {
    let Some(mut cluster) = Cluster::new(&[]) else { return };
    let pod = Pod::start("pod-a");
    cluster.service("shop", "web", &[&pod]);
    cluster.api.put(INGRESSES, ingress("good", "good.example", "/", "Prefix", "web", &[]));
    cluster.start();
    cluster.expect("good.example", "/", 200, "pod-a");
    let odd = ["a;b", "}\nserver { listen 9999; }", "\"; return 418; #", "$document_root\\"];
    let names: Vec<_> =
        tailwater_ingress::annotation::table::ANNOTATIONS.iter().map(|annotation| annotation.name).collect();
    for (number, value) in odd.iter().enumerate() {
        for (index, name) in names.iter().enumerate() {
            let object = format!("odd-{number}-{index}");
            // The switches that make others count.
            let annotations = [
                ("enable-cors", "true"),
                ("affinity", "cookie"),
                ("auth-url", "http://127.0.0.1:1/"),
                (name, value),
            ];
            cluster.api.put(
                INGRESSES,
                ingress(&object, &format!("{object}.example"), "/", "Prefix", "web", &annotations),
            );
        }
        cluster.api.put(INGRESSES, ingress(&format!("host-{number}"), value, "/", "Prefix", "web", &[]));
        cluster.api.put(
            INGRESSES,
            ingress(
                &format!("path-{number}"),
                "path.example",
                &format!("/{value}"),
                "ImplementationSpecific",
                "web",
                &[],
            ),
        );
        let regex = [("use-regex", "true"), ("rewrite-target", *value)];
        cluster.api.put(
            INGRESSES,
            ingress(
                &format!("regex-{number}"),
                "regex.example",
                &format!("/{number}{value}("),
                "Prefix",
                "web",
                &regex,
            ),
        );
    }
    for broken in [
        json!({}),
        json!({"metadata": {"name": "x/../y"}}),
        json!({"metadata": {"name": 7}, "spec": []}),
        json!("text"),
    ] {
        cluster.api.put(
            INGRESSES,
            if broken.is_object() { broken } else { json!({ "metadata": { "name": "z" }, "spec": broken }) },
        );
    }
    cluster.api.put(INGRESSES, ingress("late", "late.example", "/", "Prefix", "web", &[]));
    // Hundreds of them: the server checks them several times.
    assert!(
        wait::until(wait::TIMEOUT * 6, || cluster.get("late.example", "/").status == 200),
        "{}",
        cluster.log()
    );
    cluster.expect("good.example", "/", 200, "pod-a");
    let config = cluster.config();
    assert!(!config.contains("listen 9999"));
    for host in config.lines().filter_map(|line| line.trim().strip_prefix("server_name odd-")) {
        let host = format!("odd-{}", host.trim_end_matches(';'));
        assert_ne!(cluster.get(&host, "/").status, 418, "{host}");
    }
}

#[test]
fn snippets_need_an_option() {
    let Some(mut cluster) = Cluster::new(&[]) else { return };
    let pod = Pod::start("pod-a");
    cluster.service("shop", "web", &[&pod]);
    let snippet = [("configuration-snippet", "return 418;")];
    cluster.api.put(INGRESSES, ingress("web", "shop.example", "/", "Prefix", "web", &snippet));
    cluster.start();
    cluster.expect("shop.example", "/", 200, "pod-a");
    cluster.wait_log("has no effect without --allow-snippets");
}

#[test]
fn bad_snippets_concern_only_their_ingress() {
    let Some(mut cluster) = Cluster::new(&["--allow-snippets"]) else { return };
    let pod = Pod::start("pod-a");
    cluster.service("shop", "web", &[&pod]);
    let api = cluster.api.clone();
    let put = |name: &str, snippet: &str, kind: &str| {
        let annotations = [(kind, snippet)];
        api.put(INGRESSES, ingress(name, &format!("{name}.example"), "/", "Prefix", "web", &annotations));
    };
    put("a", "more_set_headers \"X-A: 1\";", "configuration-snippet");
    put("b", "nonsense on;", "configuration-snippet");
    put("c", "proxy_pass \"unclosed;", "server-snippet");
    put("d", "}\nlocation /x {", "server-snippet");
    put("e", "more_set_headers \"X-E: 1\";", "configuration-snippet");
    cluster.start();
    for name in ["a", "e"] {
        cluster.expect(&format!("{name}.example"), "/", 200, "pod-a");
    }
    assert_eq!(cluster.get("a.example", "/").field("x-a"), Some("1"));
    assert_eq!(cluster.get("b.example", "/").status, 404);
    let refused = |name: &str| {
        let events = cluster.api.requests("POST", "/events");
        events.iter().any(|event| event["reason"] == "Refused" && event["involvedObject"]["name"] == name)
    };
    assert!(wait::until(wait::TIMEOUT, || refused("b") && refused("c")), "{}", cluster.log());

    // The last good version of an Ingress is served while a new one is refused.
    put("e", "nonsense on;", "configuration-snippet");
    assert!(wait::until(wait::TIMEOUT, || refused("e")), "{}", cluster.log());
    assert_eq!(cluster.get("e.example", "/").field("x-e"), Some("1"));
    put("b", "more_set_headers \"X-B: 1\";", "configuration-snippet");
    cluster.expect("b.example", "/", 200, "pod-a");
}

#[test]
fn secrets_of_other_namespaces_are_not_used() {
    let Some(mut cluster) = Cluster::new(&[]) else { return };
    let pod = Pod::start("pod-a");
    cluster.service("shop", "web", &[&pod]);
    cluster
        .api
        .put(SECRETS, json!({"metadata": {"name": "users", "namespace": "bank"}, "data": {"auth": "dTp4"}}));
    let annotations = [("auth-type", "basic"), ("auth-secret", "bank/users")];
    cluster.api.put(INGRESSES, ingress("web", "shop.example", "/", "Prefix", "web", &annotations));
    cluster.start();
    cluster.expect("shop.example", "/", 503, "");
    cluster.wait_log("\"bank/users\" is in another namespace");
}
