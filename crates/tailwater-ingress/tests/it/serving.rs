//! Requests through everything: objects change, and clients see it.

use serde_json::json;
use tw_testkit::nats::FakeNats;
use tw_testkit::tls::Authority;
use tw_testkit::{Client, Signal, wait};
use tw_tls::rustls;

use crate::cluster::{Cluster, INGRESSES, Pod, SECRETS, SERVICES, ingress, local};

#[test]
fn ingress_is_served_and_endpoints_change_without_a_reload() {
    let Some(mut cluster) = Cluster::new(&[]) else { return };
    let a = Pod::start("pod-a");
    let b = Pod::start("pod-b");
    let other = Pod::start("pod-other");
    cluster.service("shop", "web", &[&a]);
    cluster.start();
    cluster.expect("shop.example", "/", 404, "");
    cluster.api.put(INGRESSES, ingress("web", "shop.example", "/app", "Prefix", "web", &[]));
    cluster.expect("shop.example", "/app", 200, "pod-a");
    // Whole elements of the path.
    for (path, status) in [("/app/", 200), ("/app/x", 200), ("/apple", 404), ("/", 404)] {
        assert_eq!(cluster.get("shop.example", path).status, status, "{path}");
    }
    let head = cluster.get("shop.example", "/app/x?y=1").text();
    for expected in
        ["GET /app/x?y=1 HTTP/1.1", "Host: shop.example", "X-Forwarded-Proto: http", "X-Real-IP: 127.0.0.1"]
    {
        assert!(head.contains(expected), "{expected} in {head}");
    }
    assert_eq!(cluster.get("other.example", "/app").status, 404);

    let reloads = cluster.reloads();
    cluster.endpoints("shop", "web", &[&a, &b]);
    cluster.expect("shop.example", "/app", 200, "pod-b");
    cluster.endpoints("shop", "web", &[&b]);
    cluster.wait_log("endpoints of 1 groups changed");
    assert!(
        wait::until(wait::TIMEOUT, || !cluster.config().contains(&a.addr.to_string())),
        "{}",
        cluster.config()
    );
    let before = a.count();
    for _ in 0..10 {
        assert!(cluster.get("shop.example", "/app").text().contains("pod-b"));
    }
    assert_eq!((a.count(), cluster.reloads()), (before, reloads), "{}", cluster.log());

    // The service loses all endpoints, and gets one back.
    cluster.endpoints("shop", "web", &[]);
    cluster.expect("shop.example", "/app", 503, "");
    cluster.endpoints("shop", "web", &[&other]);
    cluster.expect("shop.example", "/app", 200, "pod-other");
    cluster.api.delete(INGRESSES, "shop/web");
    cluster.expect("shop.example", "/app", 404, "");
}

#[test]
fn hosts_paths_and_classes_have_their_meaning() {
    let Some(mut cluster) = Cluster::new(&[]) else { return };
    let pods = [
        Pod::start("pod-exact"),
        Pod::start("pod-prefix"),
        Pod::start("pod-wild"),
        Pod::start("pod-default"),
    ];
    for (name, pod) in ["exact", "prefix", "wild", "default"].iter().zip(&pods) {
        cluster.service("shop", name, &[pod]);
    }
    cluster.api.put(INGRESSES, ingress("a", "a.example", "/p", "Exact", "exact", &[]));
    cluster.api.put(INGRESSES, ingress("b", "a.example", "/p", "Prefix", "prefix", &[]));
    cluster.api.put(INGRESSES, ingress("c", "*.a.example", "/", "Prefix", "wild", &[]));
    let mut all = ingress("d", "", "/", "Prefix", "default", &[]);
    all["spec"] = json!({"ingressClassName": "tailwater", "defaultBackend": {"service": {"name": "default", "port": {"name": "web"}}}});
    cluster.api.put(INGRESSES, all);
    let mut foreign = ingress("e", "foreign.example", "/", "Prefix", "exact", &[]);
    foreign["spec"]["ingressClassName"] = json!("other");
    cluster.api.put(INGRESSES, foreign);
    cluster.start();
    for (host, path, expected) in [
        ("a.example", "/p", "pod-exact"),
        ("a.example", "/p/", "pod-prefix"),
        ("x.a.example", "/", "pod-wild"),
        // A wildcard stands for one label.
        ("y.x.a.example", "/", "pod-default"),
        ("foreign.example", "/", "pod-default"),
    ] {
        cluster.expect(host, path, 200, expected);
    }
    cluster.expect("a.example", "/", 404, "");
}

#[test]
fn replicas_share_a_rate_by_their_engine() {
    let engine = FakeNats::start();
    let servers = format!("--fleet-engine=nats://{}", engine.addr);
    let args = [&*servers, "--fleet-node=replica-1"];
    // Without an engine the limit could not be shared, so the paths are not served at all.
    for (args, expected) in [(&args[..], [200, 200, 429]), (&[], [503; 3])] {
        let Some(mut cluster) = Cluster::new(args) else { return };
        let main = Pod::start("pod-main");
        cluster.service("shop", "main", &[&main]);
        let limits = [("global-rate-limit", "2"), ("global-rate-limit-window", "1m")];
        cluster.api.put(INGRESSES, ingress("limit", "limit.example", "/", "Prefix", "main", &limits));
        let free = [("global-rate-limit-ignored-cidrs", "127.0.0.0/8")];
        let free = [&limits[..], &free].concat();
        cluster.api.put(INGRESSES, ingress("free", "free.example", "/", "Prefix", "main", &free));
        cluster.start();
        let statuses = |host: &str| [(); 3].map(|()| cluster.get(host, "/").status);
        assert_eq!(statuses("limit.example"), expected, "{}", cluster.config());
        assert_eq!(statuses("free.example"), if args.is_empty() { [503; 3] } else { [200; 3] });
    }
}

#[test]
fn annotations_work() {
    let Some(mut cluster) = Cluster::new(&[]) else { return };
    let main = Pod::start("pod-main");
    let canary = Pod::start("pod-canary");
    cluster.service("shop", "main", &[&main]);
    cluster.service("shop", "canary", &[&canary]);
    // user:password
    let users = "dXNlcjp7U0hBfVc2cGg1TW01UHo4R2dpVUxiUGd6RzM3bWo5Zz0=";
    cluster
        .api
        .put(SECRETS, json!({"metadata": {"name": "users", "namespace": "shop"}, "data": {"auth": users}}));
    let put = |name: &str, host: &str, path: &str, annotations: &[(&str, &str)]| {
        cluster.api.put(INGRESSES, ingress(name, host, path, "ImplementationSpecific", "main", annotations));
    };
    put("rewrite", "rewrite.example", "/some(/|$)(.*)", &[("use-regex", "true"), ("rewrite-target", "/$2")]);
    put("redirect", "redirect.example", "/", &[("permanent-redirect", "https://new.example/x")]);
    put("auth", "auth.example", "/", &[("auth-type", "basic"), ("auth-secret", "users")]);
    put("noauth", "noauth.example", "/", &[("auth-type", "basic"), ("auth-secret", "missing")]);
    put("allowed", "allowed.example", "/", &[("whitelist-source-range", "127.0.0.0/8")]);
    put("denied", "denied.example", "/", &[("whitelist-source-range", "10.0.0.0/8")]);
    put("odd", "odd.example", "/", &[("whitelist-source-range", "10.0.0.0/8; allow all")]);
    put(
        "cors",
        "cors.example",
        "/",
        &[("enable-cors", "true"), ("cors-allow-origin", "https://*.good.example")],
    );
    put("limit", "limit.example", "/", &[("limit-rpm", "1"), ("limit-burst-multiplier", "1")]);
    put("vhost", "vhost.example", "/", &[("upstream-vhost", "inner.example"), ("affinity", "cookie")]);
    put("waf", "waf.example", "/", &[("enable-modsecurity", "true")]);
    put("body", "body.example", "/", &[("proxy-body-size", "1k")]);
    put("main", "canary.example", "/", &[]);
    let rules = [("canary", "true"), ("canary-by-header", "X-Canary"), ("canary-by-cookie", "canary")];
    cluster
        .api
        .put(INGRESSES, ingress("canary", "canary.example", "/", "ImplementationSpecific", "canary", &rules));
    cluster.start();

    cluster.expect("rewrite.example", "/some/thing?a=b", 200, "GET /thing?a=b ");
    cluster.expect("rewrite.example", "/some", 200, "GET / ");
    let redirect = cluster.get("redirect.example", "/a");
    assert_eq!((redirect.status, redirect.field("location")), (301, Some("https://new.example/x")));
    assert_eq!(cluster.get("auth.example", "/").status, 401);
    let passed = cluster
        .request("GET / HTTP/1.1\r\nHost: auth.example\r\nAuthorization: Basic dXNlcjpwYXNzd29yZA==\r\n\r\n");
    assert_eq!(passed.status, 200, "{}", cluster.config());
    assert!(!passed.text().contains("Authorization"));
    for (host, status) in [
        ("noauth.example", 503),
        ("allowed.example", 200),
        ("denied.example", 403),
        ("odd.example", 503),
        ("waf.example", 503),
    ] {
        assert_eq!(cluster.get(host, "/").status, status, "{host}");
    }
    let preflight = |origin: &str| {
        cluster.request(&format!("OPTIONS / HTTP/1.1\r\nHost: cors.example\r\nOrigin: {origin}\r\n\r\n"))
    };
    let good = preflight("https://a.good.example");
    assert_eq!(
        (good.status, good.field("access-control-allow-origin")),
        (204, Some("https://a.good.example"))
    );
    let bad = preflight("https://a.good.example.evil.example");
    assert_eq!((bad.status, bad.field("access-control-allow-origin")), (200, None));
    let statuses: Vec<_> = (0..4).map(|_| cluster.get("limit.example", "/").status).collect();
    assert_eq!((statuses[0], statuses[3]), (200, 503), "{statuses:?}");
    let vhost = cluster.get("vhost.example", "/");
    assert!(vhost.text().contains("Host: inner.example"));
    assert!(
        vhost.field("set-cookie").is_some_and(|cookie| cookie.starts_with("INGRESSCOOKIE=")),
        "{vhost:?}"
    );
    let large = cluster.request("POST / HTTP/1.1\r\nHost: body.example\r\nContent-Length: 5000\r\n\r\n");
    assert_eq!(large.status, 413);
    for (field, expected) in [
        ("X-Canary: always", "pod-canary"),
        ("X-Canary: never", "pod-main"),
        ("Cookie: canary=always", "pod-canary"),
        ("A: b", "pod-main"),
    ] {
        let response = cluster.request(&format!("GET / HTTP/1.1\r\nHost: canary.example\r\n{field}\r\n\r\n"));
        assert!(response.text().contains(expected), "{field}: {response:?}\n{}", cluster.config());
    }
    let reported = cluster.api.requests("POST", "/namespaces/shop/events");
    assert!(
        wait::until(wait::TIMEOUT, || {
            let events = cluster.api.requests("POST", "/namespaces/shop/events");
            ["waf", "odd", "noauth"]
                .iter()
                .all(|name| events.iter().any(|event| event["involvedObject"]["name"] == *name))
        }),
        "{reported:?}"
    );
}

#[test]
fn certificates_rotate_and_broken_ones_concern_only_their_host() {
    let Some(mut cluster) = Cluster::new(&[]) else { return };
    let pod = Pod::start("pod-a");
    cluster.service("shop", "web", &[&pod]);
    let first = Authority::new();
    let second = Authority::new();
    let api = cluster.api.clone();
    let put = |name: &str, pem: &str, key: &str| {
        let encode = |text: &str| String::from_utf8(tw_http::base64::encode(text.as_bytes())).unwrap();
        api.put(
            SECRETS,
            json!({
                "metadata": {"name": name, "namespace": "shop"}, "type": "kubernetes.io/tls",
                "data": {"tls.crt": encode(pem), "tls.key": encode(key)},
            }),
        );
    };
    let made = first.certify(&["good.example"]);
    put("good", &made.pem, &made.key);
    put("broken", &made.pem, "no key");
    for name in ["good", "broken"] {
        let host = format!("{name}.example");
        let mut object = ingress(name, &host, "/", "Prefix", "web", &[]);
        object["spec"]["tls"] = json!([{"hosts": [host], "secretName": name}]);
        cluster.api.put(INGRESSES, object);
    }
    cluster.start();
    cluster.wait_log("secret \"shop/broken\": key: ");
    let exchange = |authority: &Authority, host: &str| {
        let config = authority.client(rustls::ALL_VERSIONS);
        let mut client = Client::connect_tls(local(&cluster.https), &config, host)?;
        client.send(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"))?;
        client.read_response()
    };
    let https = |authority: &Authority, host: &str| exchange(authority, host).ok();
    let response = exchange(&first, "good.example");
    let response = response.unwrap_or_else(|error| panic!("{error}\n{}", cluster.log()));
    assert!(response.text().contains("X-Forwarded-Proto: https"), "{response:?}");
    assert_eq!(response.field("strict-transport-security"), Some("max-age=31536000; includeSubDomains"));
    assert!(https(&first, "broken.example").is_none());
    let redirect = cluster.get("good.example", "/a?b=c");
    assert_eq!((redirect.status, redirect.field("location")), (308, Some("https://good.example/a?b=c")));

    let made = second.certify(&["good.example"]);
    put("good", &made.pem, &made.key);
    assert!(wait::until(wait::TIMEOUT, || https(&second, "good.example").is_some()), "{}", cluster.log());
    cluster.wait_for_one_worker();
    assert!(https(&first, "good.example").is_none());
    // Only the server's user may read keys.
    for entry in std::fs::read_dir(cluster.run_dir().join("files")).unwrap() {
        let mode = std::os::unix::fs::PermissionsExt::mode(&entry.unwrap().metadata().unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
    }
}

#[test]
fn status_is_written_by_the_holder_of_the_lease() {
    let Some(mut cluster) = Cluster::new(&["--publish-service", "system/front"]) else { return };
    let pod = Pod::start("pod-a");
    cluster.service("shop", "web", &[&pod]);
    let service = json!({
        "metadata": {"name": "front", "namespace": "system"}, "spec": {"type": "LoadBalancer"},
        "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.7"}]}},
    });
    // Lists have all namespaces, a request for one object its own path.
    cluster.api.put("/api/v1/namespaces/system/services", service);
    cluster.api.put(INGRESSES, ingress("web", "shop.example", "/", "Prefix", "web", &[]));
    cluster.start();
    let patched = || cluster.api.requests("PATCH", "/namespaces/shop/ingresses/web/status");
    assert!(wait::until(wait::TIMEOUT, || !patched().is_empty()), "{}", cluster.log());
    assert_eq!(patched()[0]["status"]["loadBalancer"]["ingress"], json!([{"ip": "192.0.2.7"}]));
    let leases = cluster.api.requests("POST", "/apis/coordination.k8s.io/v1/namespaces/system/leases");
    assert!(leases[0]["spec"]["holderIdentity"].as_str().unwrap().starts_with("controller-0_"));
}

#[test]
fn services_outside_of_the_cluster_are_resolved() {
    let Some(mut cluster) = Cluster::new(&[]) else { return };
    let pod = Pod::start("pod-outside");
    let port = pod.addr.port();
    let external = |name: &str, host: &str| {
        cluster.api.put(
            SERVICES,
            json!({
                "metadata": {"name": name, "namespace": "shop"},
                "spec": {"type": "ExternalName", "externalName": host, "ports": [{"port": port}]},
            }),
        );
        let mut object = ingress(name, &format!("{name}.example"), "/", "Prefix", name, &[]);
        object["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]["port"]["number"] = json!(port);
        cluster.api.put(INGRESSES, object);
    };
    external("outside", "www.example.com");
    external("local", "localhost");
    cluster.start();
    assert!(
        cluster.config().contains(&format!("server www.example.com:{port} resolve;")),
        "{}",
        cluster.config()
    );
    assert_eq!(cluster.get("local.example", "/").status, 503);
}

#[test]
fn signal_ends_controller_and_server() {
    let Some(mut cluster) = Cluster::new(&[]) else { return };
    cluster.start();
    cluster.group().signal(Signal::TERM).unwrap();
    assert!(cluster.group().wait(wait::TIMEOUT).unwrap().success());
    assert!(Client::connect(local(&cluster.http)).is_err());
}
